#!/bin/sh
# A trainer of two ranks and an engine of two, each started by torchrun. On a cluster the coordinator is on the trainer's first
# host, and HEFT_URL names that host on all of them.
set -eu
cd "$(dirname "$0")"
: "${HEFT_URL:?the address of the coordinator: heft coordinator --port 7070}"

torchrun --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --no-python \
    python3 engine.py 3 &
engine=$!
torchrun --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --no-python \
    python3 trainer.py 3 2
wait $engine
