#!/usr/bin/env bash
# What the other scripts call on each worker; not to be called by hand.
#
#   setup COMMIT BUCKET        makes an environment for the code in ~/vvlen/COMMIT
#   check COMMIT               says which of how many processes this is
#   start ID COMMIT EXPERIMENT …
#                              starts an experiment that outlives this call; once
#                              for each ID, as a call that was cut off is made again
#   same EXPERIMENT …          refuses if another command was started
#   state                      says whether it runs
#   stop SECONDS               sends SIGTERM and waits for the end, so long at most
#   kill                       sends SIGKILL
#   log LINES                  prints the end of what it says
#
# Exit code 10: refused, with a line that says why.

set -euo pipefail
root=$HOME/vvlen
run=$root/run
mkdir -p "$run"
export HOSTNAME PYTHONUNBUFFERED=1

refuse() {
  echo "worker $HOSTNAME: $*" >&2
  exit 10
}

# The lock is held by the experiment's process, so it tells even after a reboot.
running() {
  ! flock --shared --nonblock "$run/lock" true
}

# Waits for an earlier call of the same verb, which goes on where only ssh was cut off.
alone() {  # SECONDS
  exec 8>"$run/alone.$verb"
  flock --wait "$1" 8 || refuse "another call of $verb has not ended"
}

setup() {
  local commit=$1 bucket=$2 python='' candidate
  alone 1800
  cd "$root/$commit"
  if [[ ! -e .venv/complete ]]; then
    for candidate in python3.13 python3.12 python3.11 python3; do
      if "$candidate" -c "import ensurepip, sys
sys.exit(not (3, 11) <= sys.version_info < (3, 14))" 2>/dev/null; then
        python=$candidate
        break
      fi
    done
    rm -rf .venv
    if [[ $python ]]; then
      "$python" -m venv .venv
    else  # the images have Python 3.10; uv brings one of its own
      timeout 300 python3 -m pip install --quiet --user uv
      timeout 300 python3 -m uv venv --quiet --seed --python 3.12 .venv
    fi
    timeout 1200 .venv/bin/python -m pip install --quiet '.[tpu,gcs]'
    touch .venv/complete
  fi
  echo "$commit" | timeout 300 gcloud storage cp --quiet - \
    "$bucket/vvlen/workers/$HOSTNAME" 2>"$run/errors" || refuse \
    "may not write to $bucket: $(grep -m 1 ERROR "$run/errors" || tail -n 1 "$run/errors")"
  cp tpu_scripts/worker.sh "$root/worker.sh.new"
  mv "$root/worker.sh.new" "$root/worker.sh"
}

# MEGASCALE variables of an earlier request would make jax.distributed.initialize wait
# forever. JAX reads the current ones from the machine's metadata.
forget_slices() {
  unset "${!MEGASCALE_@}"
}

check() {
  ! running || refuse 'an experiment runs here'
  cd "$root/$1"
  forget_slices
  timeout 600 .venv/bin/python -c "
import os, jax
given = [os.environ.get(f'JAX_{x}') for x in ('COORDINATOR_ADDRESS', 'NUM_PROCESSES', 'PROCESS_ID')]
jax.distributed.initialize(*[x and (int(x) if x.isdigit() else x) for x in given])
told = (os.environ['HOSTNAME'], 'process', jax.process_index(), 'of', jax.process_count(),
        'devices', jax.local_device_count(), 'of', jax.device_count())
# By one write, so that lines of workers do not mix.
os.write(1, (' '.join(map(str, told)) + '\n').encode())"
}

same() {
  [[ -e $run/command ]] || return 0
  printf '%s\0' "$@" | cmp --silent - "$run/command" || refuse \
    'another experiment runs here: stop.sh ends it'
  echo "$HOSTNAME commit $(<"$run/commit")"
}

start() {
  local id=$1 tries
  shift
  alone 60
  # An exit code that appears between these two looks is of what ran at the first.
  if [[ -e $run/id && $(<"$run/id") == "$id" ]] ||
    { [[ ! -e $run/exit ]] && { running || [[ -e $run/exit ]]; }; }; then
    same "${@:2}"
    return
  fi
  rm -f "$run/exit" "$run/stopped" "$run/pid"
  echo "$id" >"$run/id"
  echo "$1" >"$run/commit"
  printf '%s\0' "${@:2}" >"$run/command"
  forget_slices
  setsid nohup bash "$0" hold "$@" >>"$run/log" 2>&1 </dev/null 8>&- &
  for ((tries = 0; tries < 300; ++tries)); do
    if [[ -e $run/pid ]]; then
      echo "$HOSTNAME commit $1"
      return
    fi
    sleep 0.1
  done
  refuse "nothing started: $(tail -n 1 "$run/log")"
}

# Waits for the experiment and notes its exit code.
hold() {
  local pid code=0
  trap : TERM  # a shutdown sends it to all
  exec 9>"$run/lock"
  flock --wait 10 9
  echo $$ >"$run/group"  # of processes, by setsid
  cd "$root/$1"
  VVLEN_COMMIT=$1 .venv/bin/python -m "experiments.$2" "${@:3}" &
  pid=$!
  echo "$pid" >"$run/pid.new"
  mv "$run/pid.new" "$run/pid"
  wait "$pid" || code=$?
  while ((code > 128)) && kill -0 "$pid" 2>/dev/null; do
    code=0
    wait "$pid" || code=$?
  done
  end_with "$code"
  kill -KILL 0  # child processes that are left, and this shell
}

end_with() {  # CODE
  echo "$1" >"$run/exit.new"
  mv "$run/exit.new" "$run/exit"
}

# Looks at the lock first: the exit code is noted before the lock is free, so that what
# ends between the two looks isn't taken for what has gone without one.
state() {
  local what=none locked=''
  ! running || locked=yes
  if [[ -e $run/exit ]]; then
    what="exit $(<"$run/exit")"
    [[ ! -e $run/stopped ]] || what+=' stopped'
  elif [[ $locked ]]; then
    what=running
  elif [[ -e $run/command ]]; then
    what=gone
  fi
  echo "$HOSTNAME $what"
}

wait_for_end() {  # SECONDS
  local until=$((SECONDS + $1))
  while running && ((SECONDS < until)); do
    sleep 0.2
  done
  state
}

stop() {  # SECONDS
  if running; then
    touch "$run/stopped"
    kill -TERM "$(<"$run/pid")" 2>/dev/null || true
  fi
  wait_for_end "$1"
}

kill_all() {
  if running; then
    kill -KILL -- "-$(<"$run/group")" 2>/dev/null || true
    [[ -e $run/exit ]] || end_with 137
  fi
  wait_for_end 60
}

verb=$1
case $verb in
  setup | check | start | same | hold | state | stop) "$@" ;;
  kill) kill_all ;;
  log) tail -n "$2" "$run/log" 2>/dev/null | sed "s/^/$HOSTNAME: /" ;;
  *) refuse "unknown verb $verb" ;;
esac
