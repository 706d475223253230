#!/usr/bin/env bash
# Requests the TPU of env.sh as a queued resource, and waits until it is active.
#
# Usage: create.sh [--dry-run]
#
#   state of the resource    what is done
#   none                     it is requested
#   CREATING, ACCEPTED,      this waits, WAIT_SECONDS of env.sh in all; then the request
#   WAITING_FOR_RESOURCES,   is deleted
#   PROVISIONING
#   ACTIVE                   nothing more; if its type or number of slices is not that of
#                            env.sh, this ends with 2
#   FAILED, SUSPENDED        it is deleted with its nodes (--force) and requested again,
#                            unless there was no quota, or no TPU in time
#   SUSPENDING, DELETING     this waits until it is SUSPENDED, or gone
#
# A second call waits too, or finds the resource active.
# Exit codes: 0 active, 2 wrong input or a request that the cloud refuses, 3 no quota, 4
# not filled in time, 5 the cloud failed otherwise.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
((${#arguments[@]} == 0)) || fail $WRONG "unknown argument '${arguments[0]}'"
: "${MAX_REQUESTS:=3}"
: "${PROVISION_SECONDS:=3600}"  # beyond WAIT_SECONDS, for what is being made

# need_known WHAT VALUE COMMAND…: ends where a value is not among those that are listed.
need_known() {
  cloud "$CALL_SECONDS" "${@:3}" || give_up "list of $1s"
  # Nothing is listed in a dry run.
  if [[ $output ]] && ! grep -qxF -- "$2" <<<"$output"; then
    fail $WRONG "no $1 '$2' in $ZONE; known are $(sort -uV <<<"$output" | paste -sd ' ')"
  fi
}

request() {
  local node=(--node-id="$NAME") spot=()
  ((SLICES == 1)) || node=(--node-count="$SLICES" --node-prefix="$NAME")
  [[ $SPOT == false ]] || spot=(--spot)
  if ((requests == 0)); then
    need_known 'TPU type' "$TYPE" gcloud compute tpus accelerator-types list \
      "${place[@]}" --format='value(type)'
    need_known 'runtime version' "$RUNTIME" gcloud compute tpus tpu-vm versions list \
      "${place[@]}" --format='value(version)'
  fi
  ((requests++ < MAX_REQUESTS)) || fail $CLOUD \
    "$NAME failed $MAX_REQUESTS times, last: ${failure:-no message}"
  say "Requesting $SLICES x $TYPE as $NAME"
  # After a call that was cut off the resource may be there.
  cloud "$CALL_SECONDS" gcloud compute tpus queued-resources create "$NAME" \
    "${place[@]}" --accelerator-type="$TYPE" --runtime-version="$RUNTIME" \
    "${node[@]}" "${spot[@]}" --valid-until-duration="${WAIT_SECONDS}s" \
    --quiet --async || [[ $problem == exists ]] || give_up "request of $NAME"
  [[ ! $dry_run ]] || state=ACTIVE
}

# Sets $failure to what the resource says of why it failed.
get_failure() {
  failure=''
  if cloud "$CALL_SECONDS" gcloud compute tpus queued-resources describe "$NAME" \
    "${place[@]}" --format='value(state.failedData.error.message)'; then
    failure=$output
  fi
}

state=ABSENT requests=0 failure='' told=''
while get_state; do
  if [[ $state != "$told" ]]; then
    say "$NAME: $state"
    told=$state
  fi
  case $state in
    ACTIVE)
      ((requests)) || need_same
      exit 0
      ;;
    ABSENT) request && continue ;;
    SUSPENDED) delete_resource && continue ;;
    FAILED)
      get_failure
      delete_resource
      if ((requests)); then  # else it is of an earlier request
        [[ $(kind_of_failure 1 "$failure") != quota ]] || fail $QUOTA \
          "no quota: $failure"
        [[ ! $failure =~ [Ee]xpired|[Vv]alid.?[Uu]ntil ]] || fail $EXPIRED \
          "no TPU was free within $WAIT_SECONDS seconds: $failure"
      fi
      ;;
  esac
  limit=$WAIT_SECONDS
  [[ $state != PROVISIONING ]] || limit=$((limit + PROVISION_SECONDS))
  if ((SECONDS >= limit)); then
    delete_resource
    fail $EXPIRED "no TPU was free within $WAIT_SECONDS seconds; the request is deleted"
  fi
  sleep "$POLL_SECONDS"
done
