#!/bin/sh
# Kills profile (scripted and torch policies, with --shard, --workers, and one process that takes over), train and
# evaluate at random moments (SIGKILL, torn files), starts them again, and compares each run with an undisturbed one,
# byte for byte. Some minutes for 20 points on one core; needs no model.
#
# recipes/kill_suite.sh [--points 20] [--seed 0]        PYTHON=.venv/bin/python
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 exec "$PYTHON" tests/kill_harness.py "$@"
