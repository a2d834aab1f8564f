#!/usr/bin/env bash
# The learner `tinker` against a server that no one here wrote: SkyRL with its JAX backend on the CPU. A tiny random Qwen3
# learns the toy task of tests/test_learns.py through it; prints JSON, and fails unless the reward rises above .95.
#
#   recipes/tinker_skyrl.sh [WORK] [STEPS]
#
# WORK (default runs/tinker) gets the model and the server's own virtual environment, which needs Python 3.12 (PYTHON312)
# and a torch: TORCH is handed to pip, so that a CPU build can be named where the index offers CUDA builds first, as in
# TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu". PYTHON has pivotrl[tinker]. Recorded output:
# docs/stacks/tinker_skyrl.md. The jit compiles for every new shape, so batches are padded to 32 sequences.
set -euo pipefail
work=${1:-runs/tinker}
steps=${2:-20}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$([ -x "$here/../.venv/bin/python" ] && echo "$here/../.venv/bin/python" || echo python3)}
port=${PORT:-8791}
mkdir -p "$work"
work=$(cd "$work" && pwd)
venv=$work/venv model=$work/qwen3

if [ ! -e "$venv/done" ]; then
    "${PYTHON312:-python3.12}" -m venv "$venv"
    # shellcheck disable=SC2086 # TORCH may hold options
    "$venv/bin/pip" install -q ${TORCH:-torch==2.13.0}
    "$venv/bin/pip" install -q "skyrl[jax,tinker]==0.4.0" tinker==0.25.0 aiohttp uv
    touch "$venv/done"
fi
[ -e "$model/config.json" ] || "$python" "$here/tinker_learns.py" model "$model"

# The API starts its engine through `uv run`; --no-project and --python keep that in this environment.
(cd "$work" && PATH=$venv/bin:$PATH JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$work/compiled exec "$venv/bin/uv" run --no-project --python "$venv/bin/python" \
    -m skyrl.tinker.api --base-model "$model" --backend jax --host 127.0.0.1 --port "$port" \
    --backend-config '{"max_lora_adapters": 6, "max_lora_rank": 8, "sample_max_num_sequences": 32}' \
    --checkpoints-base "$work/checkpoints" --database-url "sqlite:///$work/tinker.db" >"$work/server.log" 2>&1) &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 300); do
    "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/api/v1/healthz')" 2>/dev/null && break
    kill -0 $server 2>/dev/null || { echo "the server ended: see $work/server.log" >&2; exit 1; }
    sleep 1
done
"$python" "$here/tinker_learns.py" learn "tinker:$model@http://127.0.0.1:$port?reduction=mean&rank=8" "$steps"
