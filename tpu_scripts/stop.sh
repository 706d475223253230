#!/usr/bin/env bash
# Stops the run: sends SIGTERM to its processes on all workers and waits until they have
# saved and ended. run.sh then ends too; the same call of run.sh resumes the run.
#
# Usage: stop.sh [--dry-run]
#
# The TPU stays, and costs money, until delete.sh. Run twice, the second finds nothing to
# stop. Exit codes: 0 nothing runs, 2 wrong input, 5 something still runs, or may: not all
# workers have answered.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
((${#arguments[@]} == 0)) || fail $WRONG "unknown argument '${arguments[0]}'"

need_active
code=0 workers=''
ask_workers $((STOP_SECONDS + CALL_SECONDS)) "$(worker stop "$STOP_SECONDS")" || code=$?
[[ ! $workers ]] || sort <<<"$workers"
((code == 0)) || give_up "workers of $NAME"
if grep -q ' running$' <<<"$workers"; then
  fail $CLOUD "still running after $STOP_SECONDS seconds: run it again, or delete.sh"
fi
