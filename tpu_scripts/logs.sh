#!/usr/bin/env bash
# Prints the end of the experiment's log on each worker. Only the first process reports
# progress; the others print only why they end.
#
# Usage: logs.sh [LINES] [--dry-run]      LINES: 50 if not given
#
# The log of a preempted worker is lost; results and learning curves are in the run's
# folder in the bucket. Changes nothing. Exit codes: 0, 2 wrong input, 5 the cloud failed.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
lines=${arguments[0]:-50}
[[ $lines =~ ^[0-9]+$ && ${#arguments[@]} -le 1 ]] || fail $WRONG \
  "a number of lines is wanted, not '${arguments[*]}'"

need_active
on_workers "$CALL_SECONDS" "$(worker log "$lines")" || give_up "workers of $NAME"
[[ $dry_run ]] || echo "$output"
