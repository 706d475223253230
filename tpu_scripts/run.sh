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
#   preempted or 143              create.sh, setup.sh with the same commit, and again; at
#                                 most MAX_RESTARTS times. No quota is tried again for
#                                 QUOTA_SECONDS
#   the cloud says that a node    delete.sh, and the same
#   is not READY or not HEALTHY
#   no answer, or none of some    nothing: the training may go on. After
#   workers                       MAX_UNREACHABLE_SECONDS as if the node were lost, or, where
#                                 the cloud does not answer either, this ends with 5
#   any other end                 as if preempted; at most MAX_FAILURES times one after another
#                                 without a new checkpoint. So does 75, a network or a bucket
#                                 that failed
#   stop.sh                       this ends with 143
#   the resource is deleted       this ends with 5
#
# Run again after it has ended, it watches what it has started; if another experiment runs
# it ends with 2. So does a second call while the first lives on this machine. Exit codes:
# 0, 1 the experiment failed too often, 2 wrong input, 3 no quota, 4 no TPU in time, 5 the
# cloud failed or too many restarts, 130 told to end (the run goes on), 143 stopped.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${MAX_SILENT:=5}"  # looks without an answer, before the cloud is asked for the health
: "${QUOTA_SECONDS:=900}"  # for the quota of a TPU that is gone to come back
: "${MAX_UNREACHABLE_SECONDS:=14400}"  # then the TPU is given up, though it may be training

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

# Two at once would both restart it. The lock is held for a moment only, as processes that
# outlive this one would inherit it.
if [[ ! $dry_run ]]; then
  mine=${XDG_STATE_HOME:-$HOME/.local/state}/vvlen/run.$PROJECT.$ZONE.$NAME
  mkdir -p "${mine%/*}"
  exec 9>>"$mine"
  flock 9
  other=$(<"$mine")
  [[ ! $other ]] || ! grep -qs run.sh "/proc/$other/cmdline" || fail $WRONG \
    "process $other watches $NAME already; status.sh and logs.sh say how it is"
  echo $$ >"$mine"
  exec 9>&-
fi

# A restart is made by the settings of the start, whatever env.sh has become meanwhile.
cp -r "$scripts" "$scratch/tpu_scripts"
scripts=$scratch/tpu_scripts
export VVLEN_CHECKOUT=$checkout

trap 'say "The run goes on: the same command watches it again, stop.sh ends it"; exit 130' \
  INT TERM

# Sets $outcome to how the run is. See worker.sh for what workers say.
look() {
  local ATTEMPTS=$ATTEMPTS
  ((silent == 0)) || ATTEMPTS=1  # the next look is the next attempt
  if ! read_state; then
    no_answer
    return
  fi
  case $state in
    ACTIVE) absent=deleted ;;
    SUSPENDING | SUSPENDED | FAILED) outcome=preempted && return ;;
    ABSENT | DELETING)
      [[ $absent != unmade ]] || exit $CLOUD  # create.sh has said why
      outcome=$absent
      return
      ;;
    *) outcome=idle && return ;;
  esac
  if ! ask_workers "$CALL_SECONDS" "$(worker state)"; then
    no_answer
    return
  fi
  silent=0 heard=$SECONDS
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

# Sets $outcome where a look has got no answer. That may be for the network or the ssh key
# of this machine, so the cloud is asked before a TPU is called lost.
no_answer() {
  local node
  if [[ $problem =~ ^(denied|refused|key)$ ]]; then
    say 'The run may go on, unwatched, and the TPU costs money until delete.sh'
    give_up "$NAME"
  fi
  outcome=silent
  ((silent++)) || say "$(reason)"
  if ((SECONDS - heard >= MAX_UNREACHABLE_SECONDS)); then
    outcome=lost
  elif ((silent >= MAX_SILENT)) || [[ $problem == lost || $problem == absent ]]; then
    for node in $(nodes); do
      if cloud "$CALL_SECONDS" gcloud compute tpus tpu-vm describe "$node" "${place[@]}" \
        --format='value(state,health)'; then
        [[ $output =~ ^READY[[:space:]]*(HEALTHY|HEALTH_UNSPECIFIED)?$ ]] || outcome=lost
      elif [[ $problem == absent ]]; then
        outcome=lost
      fi
    done
  fi
  if [[ $outcome == lost ]]; then  # or deleted since the state was read
    if read_state; then
      [[ $state != ABSENT && $state != DELETING ]] || outcome=deleted
    elif ((SECONDS - heard < MAX_UNREACHABLE_SECONDS)); then
      outcome=silent
    else
      fail $CLOUD "no answer for $((SECONDS - heard)) seconds: $(reason);" \
        "$NAME may be training, and costs money until delete.sh"
    fi
  elif ((silent == MAX_SILENT)); then
    say "$NAME is not known to be lost: watched for $MAX_UNREACHABLE_SECONDS seconds at most"
  fi
}

says() {  # PATTERN: whether a worker says so
  grep -qE "^[^ ]+ ($1)$" <<<"$workers"
}

# Creates and sets up the TPU where needed, and starts the experiment where it is not
# running. If the cloud fails, the next look decides; on any other failure this ends with
# the exit code of create.sh or setup.sh.
start() {  # WHY [delete.sh]
  local step code until=''
  ((starts++ <= MAX_RESTARTS)) || fail $CLOUD "$1, after $MAX_RESTARTS restarts"
  ((starts == 1)) || say "$1: restart $((starts - 1)) of at most $MAX_RESTARTS"
  for step in ${2:-} create.sh "setup.sh --commit=$commit"; do
    while :; do
      code=0
      # shellcheck disable=SC2086  # words apart
      "$scripts/"$step $dry_run || code=$?
      ((code == QUOTA && starts > 1)) || break
      : "${until:=$((SECONDS + QUOTA_SECONDS))}"
      ((SECONDS < until)) || break
      say 'The quota of the TPU that is gone may come back: trying again'
      sleep "$POLL_SECONDS"
    done
    ((code == 0 || code == CLOUD)) || exit "$code"
    heard=$SECONDS silent=0  # create.sh may have waited for a day
    if ((code)); then
      # If it is gone, this has deleted it, or not got it.
      [[ $step == setup* ]] || { ((starts > 1)) && absent=idle || absent=unmade; }
      return 0
    fi
  done
  on_processes start "$(date +%s).$$.$starts" "$commit"
}

on_processes() {  # start ID COMMIT, or same
  if on_workers "$CALL_SECONDS" "$(worker "$@" "${arguments[@]}" --distributed)"; then
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

starts=0 failures=0 silent=0 heard=0 checkpoints='' told='' partly='' state=ABSENT
absent=deleted  # what it means that there is no resource
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
        on_processes same
        ;;
      silent) ;;
      lost)
        need_same  # after an edit of env.sh, other nodes are looked for
        start first delete.sh
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
    lost) start 'Workers are lost' delete.sh ;;  # create.sh leaves what is ACTIVE
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
