#!/usr/bin/env bash
# What `pivotrl export --to nemo-gym` writes, held against NeMo Gym itself: its models, configurations, verifier servers
# and reward profiler, in process, on a CPU, without Ray and without a model. Fails where something differs.
#
#   recipes/nemo_gym.sh [WORK] [TRAJECTORIES...]
#
# PYTHON has pivotrl. PYTHON312 and PYTHON313 make an environment each, for nemo-gym 0.4.0 and for 0.7.0 (which says that
# it needs 3.13.14, and runs on 3.13.0); VERSIONS="0.7.0" leaves one out. WORK (default runs/nemo_gym) gets them, and
# a run of its own with its export; TRAJECTORIES, what `pivotrl ingest` reads, are exported and checked as well. GYM=DIR, a
# checkout of NVIDIA-NeMo/Gym, adds upstream's row validator. Recorded output: docs/exports.md.
set -euo pipefail
work=${1:-runs/nemo_gym}
shift || true
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$([ -x "$here/../.venv/bin/python" ] && echo "$here/../.venv/bin/python" || echo python3)}
ours="numpy jinja2 orjson jsonschema jsonschema-rs referencing safetensors tree-sitter tree-sitter-bash tyro httpx zstandard"
mkdir -p "$work"
work=$(cd "$work" && pwd)
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore

make_venv() { # PYTHON VENV
    "$1" -m venv "$2"
    # shellcheck disable=SC2086 # a list of packages
    "$2/bin/pip" install -q $ours
}
for version in ${VERSIONS:-0.4.0 0.7.0}; do
    venv=$work/venv-$version
    [ -e "$venv/done" ] && continue
    case $version in
    0.4.0)
        make_venv "${PYTHON312:-python3.12}" "$venv"
        "$venv/bin/pip" install -q nemo-gym==0.4.0 openapi-schema-validator
        ;;
    *)
        make_venv "${PYTHON313:-python3.13}" "$venv"
        "$venv/bin/pip" install -q --ignore-requires-python --no-deps "nemo-gym==$version"
        "$venv/bin/pip" install -q pydantic fastapi aiohttp orjson openai==2.44.0 hydra-core omegaconf uvicorn httptools \
            uvloop itsdangerous psutil 'mcp<2' openapi-schema-validator rich jinja2 packaging tqdm devtools requests \
            urllib3 yappi pyarrow pydot GitPython pandas scipy 'ray[default]' wandb
        ;;
    esac
    touch "$venv/done"
done
rm -rf "$work/made"
mkdir "$work/made"
PYTHONPATH=$here/../src "$python" "$here/gym_material.py" "$work/made" "$@"
for version in ${VERSIONS:-0.4.0 0.7.0}; do
    PYTHONPATH=$here/../src "$work/venv-$version/bin/python" "$here/gym_check.py" "$work/made" ${GYM:+"$GYM"}
done
