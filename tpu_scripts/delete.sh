#!/usr/bin/env bash
# Deletes the queued resource of env.sh with its nodes, and waits until it is gone. Runs in
# the bucket stay.
#
# Usage: delete.sh [--dry-run]
#
# Whatever its state: a resource that is FAILED or SUSPENDED uses up quota, and one that is
# ACTIVE costs money, until it is deleted. Run twice, the second says that there is nothing
# to delete, or waits with the first. Exit codes: 0 gone, 2 wrong input, 5 it is still there.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
((${#arguments[@]} == 0)) || fail $WRONG "unknown argument '${arguments[0]}'"

state=ACTIVE
delete_resource
if [[ $found ]]; then
  say "$NAME is deleted"
else
  say "There is no $NAME in $ZONE of $PROJECT: nothing is deleted"
fi
