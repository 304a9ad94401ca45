#!/bin/sh
# The same under MPI. Between hosts: --hostfile, and -x HEFT_URL -x HEFT_TOKEN_FILE -x HEFT_CA_FILE hands the settings on.
set -eu
cd "$(dirname "$0")"
: "${HEFT_URL:?the address of the coordinator: heft coordinator --port 7070}"

mpirun -n 2 -x HEFT_URL ${MPI_ARGS:-} python3 engine.py 3 &
engine=$!
mpirun -n 2 -x HEFT_URL ${MPI_ARGS:-} python3 trainer.py 3 2
wait $engine
