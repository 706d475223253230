#!/usr/bin/env bash
# Prints the state of the TPU and of its run: that of the queued resource and, where it is
# ACTIVE, a line for each worker: running, exit CODE, gone (its machine was started anew) or
# none (nothing was started).
#
# Usage: status.sh [--dry-run]
#
# Changes nothing. Exit codes: 0 said, 2 wrong input, 5 the cloud failed, or not
# all workers have answered.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
((${#arguments[@]} == 0)) || fail $WRONG "unknown argument '${arguments[0]}'"

state=ACTIVE
get_state
[[ $dry_run ]] || echo "$NAME: $state"
if [[ $state == ACTIVE ]]; then
  code=0 workers=''
  ask_workers "$CALL_SECONDS" "$(worker state)" || code=$?
  [[ ! $workers ]] || sort <<<"$workers"
  ((code == 0)) || give_up "workers of $NAME"
fi
