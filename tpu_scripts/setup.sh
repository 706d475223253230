#!/usr/bin/env bash
# Sends this commit to all workers through the bucket, installs it there, and checks that
# their processes find each other.
#
# Usage: setup.sh [--commit=COMMIT] [--dry-run]
#
# A commit is sent, never a file that is not committed: if there are such files, name the
# commit, as in --commit=HEAD. Run twice, the second finds everything there and checks again.
# Exit codes: 0 ready, 2 wrong input, no right to the bucket, processes that do not find
# each other, 5 the cloud failed.

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${CHECK_SECONDS:=660}"

take_commit
((${#arguments[@]} == 0)) || fail $WRONG "unknown argument '${arguments[0]}'"

need_active
say "Sending commit $(git -C "$checkout" log -1 --format='%h (%s)' "$commit")"
code=$BUCKET/vvlen/code/$commit.tar.gz
git -C "$checkout" archive --format=tar.gz --output="$scratch/code.tar.gz" "$commit"
cloud "$CALL_SECONDS" gcloud storage cp --quiet --project="$PROJECT" \
  "$scratch/code.tar.gz" "$code" || case $problem in
  denied | absent) fail $WRONG "no right to write to $BUCKET, or no such bucket: $(reason)" ;;
  *) give_up "copy to $BUCKET" ;;
esac

folder="\$HOME/vvlen/$commit"
install="mkdir -p $folder"
install+=" && timeout 300 gcloud storage cp --quiet $(printf %q "$code") $folder/code.tar.gz"
install+=" && tar -xzf $folder/code.tar.gz -C $folder"
install+=" && bash $folder/tpu_scripts/worker.sh setup $commit $(printf %q "$BUCKET")"
on_workers "$SETUP_SECONDS" "$install" || case $problem in
  denied) fail $WRONG "the workers may not read $BUCKET: $(reason)" ;;
  *) give_up "setup of $NAME" ;;
esac

count_workers || give_up "workers of $NAME"
on_workers "$CHECK_SECONDS" "$(worker check "$commit")" || give_up "processes of $NAME"
[[ ! $dry_run ]] || exit 0
# Each worker says "HOST process I of N devices …". All must answer, and know of all
# others.
found=$(grep -E ' process [0-9]+ of [0-9]+ devices ' <<<"$output" | sort -k3n) || true
count=$(grep -c . <<<"$found") || true
numbers=$(cut -d ' ' -f 3 <<<"$found" | paste -sd ' ')
if [[ $numbers != "$(seq -s ' ' 0 $((expected - 1)))" ]] ||
  ! awk -v n="$expected" '$5 != n { exit 1 }' <<<"$found"; then
  say "$found"
  fail $WRONG "the $expected workers of $SLICES x $TYPE do not make one run of $expected" \
    "processes; $count have answered"
fi
say "Ready: $count processes, ${found##* } devices"
