#!/usr/bin/env bash
# Ranks the four answers of MMLU's questions, with five solved questions before each. Flags go to the
# evaluation, such as --limit=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=$out/mmlu/data T0_VOCAB=${T0_VOCAB:-$here/../own_prompts/data/tickets.model}

python "$here/prepare.py" "${MMLU:-$here/published}" "$T0_DATA_DIR"
t0 eval "${MODEL:-$out/own_prompts/model}" --tasks='mmlu_.*_score_eval' --split=test --num_fewshot=5 \
  --output="$out/mmlu/eval" "$@"
