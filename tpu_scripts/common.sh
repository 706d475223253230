# Read by the scripts of this folder: settings, flags, and one guarded way to call the
# cloud. Exit codes of all of them:
#
#   0  done
#   1  the experiment failed, or a bug
#   2  wrong input, or a request that the cloud refuses: try again only after a change
#   3  no quota
#   4  the request for a TPU was not filled in time, and was deleted
#   5  the cloud failed otherwise; the same command may be run again
#
# shellcheck shell=bash disable=SC2034

readonly WRONG=2 QUOTA=3 EXPIRED=4 CLOUD=5

# Tests make these small.
: "${CALL_SECONDS:=120}"       # limit of one call of gcloud
: "${SETUP_SECONDS:=1800}"     # limit of a call that installs packages on the workers
: "${STOP_SECONDS:=600}"       # for processes that were told to stop, to save and end
: "${DELETE_SECONDS:=1800}"    # for a resource to be gone
: "${POLL_SECONDS:=30}"        # between two looks at a state
: "${RETRY_SECONDS:=5}"        # before the first repetition of a call; then twice, …
: "${ATTEMPTS:=4}"             # of a call whose failures are transient

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=${VVLEN_CHECKOUT:-$(dirname "$scripts")}  # run.sh calls copies of the scripts
# shellcheck source=env.sh
source "$scripts/env.sh"

say() {
  printf '%s\n' "$*" >&2
}

fail() {  # CODE WORDS…
  say "${0##*/}: ${*:2}"
  exit "$1"
}

# Takes --dry-run and --help out of the arguments, which are left in $arguments.
dry_run='' arguments=()
for argument; do
  case $argument in
    --dry-run) dry_run=--dry-run ;;
    -h | --help)
      sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) arguments+=("$argument") ;;
  esac
done

check_settings() {
  local name
  for name in PROJECT ZONE NAME TYPE RUNTIME BUCKET SPOT SLICES; do
    [[ ${!name:-} ]] || fail $WRONG "env.sh has no $name"
  done
  [[ $NAME =~ ^[a-z]([-a-z0-9]{0,58}[a-z0-9])?$ ]] || fail $WRONG \
    "NAME '$NAME' in env.sh: a small letter, then up to 59 small letters, digits or" \
    "hyphens, no hyphen at the end"
  [[ $BUCKET =~ ^gs://[a-z0-9][-_.a-z0-9]+(/[-_.a-zA-Z0-9]+)*$ ]] || fail $WRONG \
    "BUCKET '$BUCKET' in env.sh is not of the form gs://name or gs://name/folder"
  [[ $SPOT == true || $SPOT == false ]] || fail $WRONG \
    "SPOT '$SPOT' in env.sh is neither true nor false"
  for name in SLICES WAIT_SECONDS MAX_RESTARTS MAX_FAILURES; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || fail $WRONG \
      "$name '${!name}' in env.sh is not a whole number above 0"
  done
  if [[ ! $dry_run ]]; then
    [[ $PROJECT != my-project && $BUCKET != gs://my-bucket ]] || fail $WRONG \
      'edit env.sh first: PROJECT and BUCKET are those of the example'
    for name in gcloud timeout git flock; do
      command -v "$name" >/dev/null || fail $WRONG "there is no command $name here"
    done
  fi
}
check_settings

place=(--project="$PROJECT" --zone="$ZONE")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# What ssh says of keys. It ends with 255, as where it does not reach the host.
readonly SSH_KEYS='Permission denied \(|Host key verification failed|HOST IDENTIFICATION HAS CHANGED'

# kind_of_failure CODE MESSAGE: says in one word what a failed call of gcloud means.
# 124 and 137 are those of `timeout`, 255 that of ssh, 10 of worker.sh when it refuses.
kind_of_failure() {
  local -a kinds=(
    lost 'has terminal state|cannot be currently connected to'
    absent 'NOT_FOUND|was not found|not found: 404|HTTPError 404|bucket does not exist'
    exists 'ALREADY_EXISTS|already exists'
    busy 'FAILED_PRECONDITION'
    denied 'PERMISSION_DENIED|UNAUTHENTICATED|not have permission|active account|HTTPError 40[13]'
    refused 'INVALID_ARGUMENT|unrecognized arguments|Invalid value|invalid choice|not present in the SSH agent'
    transient 'per minute|[Rr]ate ?[Ll]imit|no more capacity'
    quota 'RESOURCE_EXHAUSTED|[Qq]uota'
    transient 'UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|ABORTED|HTTPError 5|code=5[0-9][0-9]|[Tt]imed out|[Cc]onnection|[Tt]emporar'
  )
  local i
  case $1 in
    10) echo refused && return ;;
    124 | 137) echo transient && return ;;
  esac
  [[ ! $2 =~ $SSH_KEYS ]] || { echo key && return; }
  (($1 != 255)) || { echo transient && return; }
  for ((i = 0; i < ${#kinds[@]}; i += 2)); do
    if [[ $2 =~ ${kinds[i + 1]} ]]; then
      echo "${kinds[i]}"
      return
    fi
  done
  echo other
}

# cloud SECONDS COMMAND…: runs a command with a time limit, and again, after growing
# pauses, if its failure is transient, or of a key, which a new worker may not have yet. Sets
# $output to what it prints, and after a failure $problem to its kind and $message to its
# text. In a dry run, only prints the command.
cloud() {
  local seconds=$1 attempt pause=$RETRY_SECONDS code errors=$scratch/errors.$BASHPID
  shift
  output='' problem='' message=''
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    printf '\n'
    return
  fi
  for ((attempt = 1; ; ++attempt)); do
    code=0
    output=$(timeout --kill-after=10 "$seconds" "$@" </dev/null 2>"$errors") || code=$?
    message=$(<"$errors")
    ((code)) || return 0
    problem=$(kind_of_failure "$code" "$message")
    ((code != 124 && code != 137)) || message="no answer within $seconds seconds"
    [[ $problem == transient || $problem == key ]] && ((attempt < ATTEMPTS)) || return "$code"
    say "$(reason): trying again in $pause s"
    sleep "$pause"
    pause=$((pause * 2))
  done
}

# Prints one line of $message: that of worker.sh, or of gcloud, or the last.
reason() {
  local line
  line=$(grep -m 1 -E "^(worker [^ ]+: |ERROR: )|$SSH_KEYS" <<<"$message") ||
    line=$(grep -v '^ *$' <<<"$message" | tail -n 1) || line='no message'
  printf '%s' "$line"
}

# Ends after a failed call, with the exit code that belongs to it.
give_up() {  # WORDS…
  case $problem in
    quota) fail $QUOTA "$*: no quota: $(reason)" ;;
    denied | refused | key) fail $WRONG "$*: $(reason)" ;;
    *) fail $CLOUD "$*: $(reason)" ;;
  esac
}

# Sets $state to that of the queued resource, ABSENT where there is none. In a dry run
# it stays what it was. Fails where the cloud does not say.
read_state() {
  if cloud "$CALL_SECONDS" gcloud compute tpus queued-resources describe "$NAME" \
    "${place[@]}" --format='value(state.state)'; then
    [[ $dry_run ]] || state=${output:-UNKNOWN}
  elif [[ $problem == absent ]]; then
    state=ABSENT
  else
    return 1
  fi
}

get_state() {
  read_state || give_up "state of $NAME"
}

# Takes --commit=COMMIT out of the arguments, and sets $commit to the full name of that
# commit. Without it, this ends where a file is not committed, as it would not be sent.
take_commit() {
  local named='' argument changes rest=()
  for argument in "${arguments[@]}"; do
    case $argument in
      --commit=*) named=${argument#*=} ;;
      *) rest+=("$argument") ;;
    esac
  done
  arguments=("${rest[@]}")
  commit=$(git -C "$checkout" rev-parse --quiet --verify "${named:-HEAD}^{commit}") ||
    fail $WRONG "no commit '${named:-HEAD}' in $checkout"
  [[ ! $named ]] || return 0
  changes=$(git -C "$checkout" status --porcelain) || fail $WRONG \
    "git does not say whether files of $checkout are committed"
  [[ ! $changes ]] || fail $WRONG \
    "$checkout has changes that are not committed; commit them, or send the last commit" \
    "without them by --commit=${commit:0:10}"
}

need_active() {
  state=ACTIVE
  get_state
  [[ $state == ACTIVE ]] || fail $WRONG "$NAME is $state, not ACTIVE: run create.sh first"
}

# Deletes the queued resource with its nodes, which use up quota until they are gone,
# and waits for it. While it is DELETING there is nothing more to ask for, and while it
# is SUSPENDING it can't be deleted yet. Sets $found if there was one.
delete_resource() {
  local started=$SECONDS
  found=''
  while get_state && [[ $state != ABSENT ]]; do
    found=yes
    if [[ $state != DELETING && $state != SUSPENDING ]]; then
      if cloud "$CALL_SECONDS" gcloud compute tpus queued-resources delete "$NAME" \
        "${place[@]}" --force --quiet --async; then
        [[ ! $dry_run ]] || state=ABSENT
      elif [[ $problem == denied || $problem == refused ]]; then
        give_up "$NAME is not deleted"
      fi
    fi
    [[ ! $dry_run ]] || return 0
    ((SECONDS - started < DELETE_SECONDS)) || fail $CLOUD \
      "$NAME is still $state after $DELETE_SECONDS seconds, and may still cost money"
    sleep "$POLL_SECONDS"
  done
}

# Ends where the resource is of another type or number of slices than env.sh says. What the
# cloud does not say is not compared.
need_same() {
  local type node count format
  format='value[separator=","](tpu.nodeSpec[0].node.acceleratorType,'
  format+='tpu.nodeSpec[0].nodeId,tpu.nodeSpec[0].multisliceParams.nodeCount)'
  cloud "$CALL_SECONDS" gcloud compute tpus queued-resources describe "$NAME" \
    "${place[@]}" --format="$format" || return 0
  IFS=, read -r type node count <<<"$output"
  [[ ! $node ]] || count=1
  [[ ${type##*/} == "${type:+$TYPE}" && $count == "${count:+$SLICES}" ]] || fail $WRONG \
    "$NAME is ${count:-?} x ${type:-?}, not $SLICES x $TYPE as in env.sh: delete.sh first"
}

nodes() {
  if ((SLICES == 1)); then
    echo "$NAME"
  else
    seq --format "$NAME-%g" 0 $((SLICES - 1))
  fi
}

# on_workers SECONDS COMMAND: runs a command on all workers of all nodes at once.
# $output is what they print. If it fails, $problem and $message are those of one failing
# node.
on_workers() {
  local node failed='' code=0
  for node in $(nodes); do
    (
      code=0
      cloud "$1" gcloud compute tpus tpu-vm ssh "$node" "${place[@]}" --worker=all \
        --command="$2" --quiet >"$scratch/$node.dry" || code=$?
      printf '%s' "$output" >"$scratch/$node.output"
      printf '%s' "$problem" >"$scratch/$node.problem"
      printf '%s' "$message" >"$scratch/$node.message"
      exit "$code"
    ) &
    printf '%s' $! >"$scratch/$node.job"
  done
  for node in $(nodes); do
    wait "$(<"$scratch/$node.job")" || { code=$? failed=$node; }
  done
  output=$(for node in $(nodes); do cat "$scratch/$node.output" && echo; done)
  problem='' message=''
  for node in $(nodes); do cat "$scratch/$node.dry"; done
  [[ $failed ]] || return 0
  problem=$(<"$scratch/$failed.problem") message=$(<"$scratch/$failed.message")
  return "$code"
}

# Sets $expected to the number of workers, by the cloud's own list of their addresses.
count_workers() {
  local node count=0
  for node in $(nodes); do
    cloud "$CALL_SECONDS" gcloud compute tpus tpu-vm describe "$node" "${place[@]}" \
      --format='value(networkEndpoints.len())' || return
    if [[ ! $dry_run && ! $output =~ ^[1-9][0-9]*$ ]]; then
      problem=other message="the cloud does not say how many workers $node has: '$output'"
      return 1
    fi
    count=$((count + ${output:-0}))
  done
  expected=$count
}

# ask_workers SECONDS COMMAND: sets $workers to the states that workers print. Fails unless
# there is one of each worker: gcloud may succeed without the output of some.
ask_workers() {
  local code=0 count
  [[ ${expected:-} ]] || count_workers || return
  on_workers "$@" || code=$?
  [[ ! $dry_run ]] || return 0
  workers=$(grep -E '^[^ ]+ (running|gone|none|exit [0-9]+( stopped)?)$' <<<"$output") ||
    true
  ((code == 0)) || return "$code"
  count=$(grep -c . <<<"$workers") || true
  ((count == expected)) || {
    problem=transient message="$count of $expected workers have answered"
    return 1
  }
}

# Prints a command that calls worker.sh on a worker, where it lies after setup.
worker() {  # VERB ARGUMENTS…
  # shellcheck disable=SC2016  # the worker is to expand them
  printf 'if [ -e ~/vvlen/worker.sh ]; then bash ~/vvlen/worker.sh'
  printf ' %q' "$@"
  # shellcheck disable=SC2016
  printf '; else echo "$HOSTNAME none"; fi'
}
