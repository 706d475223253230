# What the scripts of this folder work on: the only file to edit.
# shellcheck shell=bash disable=SC2034

PROJECT=my-project           # as in `gcloud projects list`
ZONE=us-central2-b           # where the project has TPU quota
NAME=vvlen                   # name of the queued resource; nodes are NAME, or NAME-0, NAME-1, …
TYPE=v4-16                   # of each slice; if unknown, create.sh lists the types of the zone
RUNTIME=tpu-ubuntu2204-base  # the image of the workers, likewise
BUCKET=gs://my-bucket        # for code and runs, best in the region of the zone
SPOT=true                    # cheaper, and may be taken away at any time; or false
SLICES=1                     # 2 or more: multislice

WAIT_SECONDS=86400           # a request that is not filled by then is given up
MAX_RESTARTS=20              # of a run, after preemptions
MAX_FAILURES=3               # of a run, one after another without a new checkpoint
