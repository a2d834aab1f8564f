#!/usr/bin/env bash
# `pivotrl export --to verl` read by verl's own classes, without a GPU: RLHFDataset (with its filter of long prompts), the
# builder of prompt ids that its agent loops use, and its reward manager with our reward.py. Prints JSON; fails unless all
# prompts have our ids and all demonstrations earn 1. Output: docs/exports.md.
#
#   recipes/verl_dataset.sh [WORK]
#
# WORK (default runs/verl) gets verl's own virtual environment (1.8 GB; PYTHON3 makes it) and the export. TORCH is handed
# to pip, so that a CPU build can be named. PYTHON has pivotrl.
set -euo pipefail
work=${1:-runs/verl}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$([ -x "$here/../.venv/bin/python" ] && echo "$here/../.venv/bin/python" || echo python3)}
mkdir -p "$work"
work=$(cd "$work" && pwd)
venv=$work/venv
if [ ! -e "$venv/done" ]; then
    "${PYTHON3:-python3}" -m venv "$venv"
    # shellcheck disable=SC2086 # TORCH may hold options
    "$venv/bin/pip" install -q ${TORCH:-torch==2.13.0}
    "$venv/bin/pip" install -q "transformers>=5.5.3,<5.11,!=5.6.0" "tensordict>=0.8,<=0.10,!=0.9.0" "ray[default]>=2.41" \
        accelerate codetiming datasets dill hydra-core pandas peft pillow pyarrow torchdata
    "$venv/bin/pip" install -q --no-deps verl==0.9.1
    "$venv/bin/pip" install -q "$here/.."
    touch "$venv/done"
fi
export HF_HUB_OFFLINE=1
rm -rf "$work/desk"
"$python" "$here/verl_dataset.py" make "$work/desk"
"$venv/bin/python" "$here/verl_dataset.py" check "$work/desk" 2>"$work/log" || { tail -5 "$work/log" >&2; exit 1; }
