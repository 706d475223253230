#!/usr/bin/env bash
# Runs an experiment on the TPU of env.sh until it is done, whatever happens in between.
#
# Usage: run.sh EXPERIMENT --config=FILE --workdir=gs://… [FLAG…] [--commit=COMMIT]
#               [--dry-run]
# as in  run.sh language_model --config=configs/language_model.py:quick \
#            --config.train.seeds_at_once=0 --workdir=gs://my-bucket/runs/lm
#
# It requests the TPU and sends this commit, if need be (create.sh, setup.sh), starts the
# experiment on all workers, where it continues if this script ends, and watches it:
#
#   all workers end with 0        done
#   one ends with 2               wrong input: all are ended, and this with 2
#   preempted, lost or 143        create.sh, setup.sh with the same commit, and again; at
#                                 most MAX_RESTARTS times
#   any other end                 the same; at most MAX_FAILURES times one after another
#                                 without a new checkpoint
#   stop.sh                       this ends with 143
#   the resource is deleted       this ends with 5
#
# Run twice, the second watches what the first has started; if another experiment runs it
# ends with 2. Exit codes: 0, 1 the experiment failed too often, 2 wrong input, 3 no quota,
# 4 no TPU in time, 5 the cloud failed or too many restarts, 130 told to end (the run goes
# on), 143 stopped.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${MAX_SILENT:=5}"  # looks one after another at which a worker cannot be reached

take_commit
((${#arguments[@]})) || fail $WRONG 'which experiment?'
experiment=${arguments[0]} workdir=''
for argument in "${arguments[@]:1}"; do
  [[ $argument != --workdir=* ]] || workdir=${argument#*=}
done
[[ $workdir == gs://* ]] || fail $WRONG "--workdir=gs://… is wanted, not '$workdir':" \
  'the disks of workers go when they are preempted'
git -C "$checkout" cat-file -e "$commit:experiments/$experiment/__main__.py" 2>/dev/null ||
  fail $WRONG "no experiment '$experiment' in commit ${commit:0:10}"

trap 'say "The run goes on: the same command watches it again, stop.sh ends it"; exit 130' \
  INT TERM

# Sets $outcome to how the run is. See worker.sh for what workers say.
look() {
  get_state
  case $state in
    ACTIVE) ;;
    SUSPENDING | SUSPENDED | FAILED) outcome=preempted && return ;;
    ABSENT | DELETING) outcome=deleted && return ;;
    *) outcome=idle && return ;;
  esac
  if ! ask_workers "$CALL_SECONDS" "$(worker state)"; then
    case $problem in
      lost | absent) outcome=lost ;;
      denied | refused) give_up "workers of $NAME" ;;
      *) ((++silent < MAX_SILENT)) && outcome=silent || outcome=lost ;;
    esac
    say "$(reason)"
    if [[ $outcome == lost ]]; then  # or deleted since the state was read
      get_state
      [[ $state != ABSENT && $state != DELETING ]] || outcome=deleted
    fi
    return
  fi
  silent=0
  if says 'exit 2'; then
    outcome=wrong
  elif says running; then
    outcome=running
    ! says 'gone|none|exit [1-9].*' || outcome=partly
  elif ! says 'gone|none|exit [1-9].*'; then
    outcome='done'
  elif says 'exit [0-9]+ stopped'; then
    outcome=stopped
  elif ! says 'gone|exit [0-9]+'; then
    outcome=idle
  elif says 'gone|none|exit 143'; then
    outcome=preempted
  else
    outcome=failed
  fi
}

says() {  # PATTERN: whether a worker says so
  grep -qE "^[^ ]+ ($1)$" <<<"$workers"
}

# Creates and sets up the TPU where needed, and starts the experiment where it is not
# running. If the cloud fails, the next look decides; on any other failure this ends with
# the exit code of create.sh or setup.sh.
start() {  # WHY
  local step code
  ((starts++ <= MAX_RESTARTS)) || fail $CLOUD "$1, after $MAX_RESTARTS restarts"
  ((starts == 1)) || say "$1: restart $((starts - 1)) of at most $MAX_RESTARTS"
  for step in create.sh "setup.sh --commit=$commit"; do
    code=0
    # shellcheck disable=SC2086  # words apart
    "$scripts/"$step $dry_run || code=$?
    ((code == 0 || code == CLOUD)) || exit "$code"
    ((code == 0)) || return 0
  done
  start_processes
}

start_processes() {
  if on_workers "$CALL_SECONDS" \
    "$(worker start "$commit" "${arguments[@]}" --distributed)"; then
    [[ ! $dry_run ]] || return 0
    # What runs already may be of another.
    [[ ! $output =~ \ commit\ ([0-9a-f]+)$ ]] || commit=${BASH_REMATCH[1]}
    say "Running on $(grep -c . <<<"$output") workers, commit ${commit:0:10}"
  elif [[ $problem == refused || $problem == denied ]]; then
    give_up "start of $experiment"
  fi
}

# Counts failures; a new checkpoint between two of them resets the count.
note_failure() {
  local found
  on_workers "$CALL_SECONDS" "$(worker log 20)" && say "$output"
  if cloud "$CALL_SECONDS" gcloud storage ls --project="$PROJECT" "$workdir/**"; then
    # A checkpoint is a folder named by its step.
    found=$(sed -nE 's#.*/checkpoints/(.*/[0-9]+)/.*#\1#p' <<<"$output" | sort -u)
    [[ ! $(comm -13 <(echo "$checkpoints") <(echo "$found")) ]] || failures=0
    checkpoints=$found
  fi
  ((++failures < MAX_FAILURES)) || fail 1 \
    "$experiment failed $failures times without a new checkpoint"
}

starts=0 failures=0 silent=0 checkpoints='' told='' partly='' state=ABSENT
workers='worker none'
while look; do
  if [[ $outcome != "$told" ]] && ((starts)); then
    say "$experiment: $outcome"
    told=$outcome
  fi
  if ((starts == 0)); then  # whatever is found was started by an earlier call
    case $outcome in
      running | partly)
        starts=1
        start_processes  # keeps a running experiment, and refuses if it is another one
        ;;
      silent) ;;
      lost)
        delete_resource
        start first
        ;;
      *) start first ;;
    esac
    outcome=''
  fi
  [[ $outcome == partly ]] || partly=''
  case $outcome in
    done)
      [[ $dry_run ]] || say "Done: $workdir. The TPU is still there: delete.sh"
      exit 0
      ;;
    wrong)
      on_workers "$CALL_SECONDS" "$(worker log 5)" && say "$output"
      on_workers $((CALL_SECONDS + 60)) "$(worker kill)" || true
      fail $WRONG "wrong input to $experiment; its own words are above"
      ;;
    stopped)
      say "Stopped. The same command goes on"
      exit 143
      ;;
    deleted) fail $CLOUD "$NAME is $state: somebody has deleted it" ;;
    idle) start 'Nothing runs' ;;
    preempted) start 'Preempted' ;;
    lost)
      delete_resource  # it may say ACTIVE, and create.sh would leave it
      start 'Workers are lost'
      ;;
    failed)
      note_failure
      start 'Failed'
      ;;
    partly)  # the others end by themselves, or wait for ever
      : "${partly:=$SECONDS}"
      ((SECONDS - partly < STOP_SECONDS)) ||
        on_workers $((CALL_SECONDS + 60)) "$(worker kill)" || true
      ;;
  esac
  if [[ $dry_run ]]; then
    state=ACTIVE workers='worker exit 0'
  else
    sleep "$POLL_SECONDS"
  fi
done
