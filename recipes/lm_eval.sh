#!/usr/bin/env bash
# Forgetting by tasks of lm-eval, offline: two tiny local tasks (recipes/lm_eval_tasks) and a text, the shipped base beside
# the same with noise in its weights; then lm-eval's own command on the base, and both compared.
# Needs: pip install -e '.[eval]' (about 2 minutes with torch). Takes about 2 minutes on one core.
set -euo pipefail
tasks=$(cd "$(dirname "$0")/lm_eval_tasks" && pwd)
work=${1:-runs/lm_eval}
mkdir -p "$work" && cd "$work"
export HF_HUB_OFFLINE=1 HF_DATASETS_CACHE=$PWD/datasets
ln -sf "$tasks"/*.jsonl .
base=$(python -c 'import pathlib, pivotrl; print(pathlib.Path(pivotrl.__file__).parent / "lab/base")')
python - "$base" <<'PY'
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
torch.manual_seed(0)
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.numel() > 1:
            parameter.add_(0.5 * parameter.std() * torch.randn_like(parameter))
model.save_pretrained("noisy")
transformers.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained("noisy")
PY
printf 'Say: red green blue\n\nLargest: 3 17 5\n\nReverse: Oslo Rome Lima\n' >text.txt
pivotrl evaluate --run run --policies base="$base" noisy=noisy --forgetting.lm-eval largest say \
  --forgetting.include "$tasks" --forgetting.text text.txt --forgetting.chat
lm_eval --model hf --model_args "pretrained=$base,dtype=float32" --tasks largest,say --include_path "$tasks" \
  --device cpu --batch_size 1 --apply_chat_template --log_samples --output_path own
pivotrl compare base=own noisy=run:noisy
pivotrl report --run run
