#!/usr/bin/env bash
# Fine-tunes the model of examples/pretrain on DATA/qa/squad, then answers questions.
# Flags go to the training, such as --finetune_steps=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with qa/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

t5_mesh_transformer --module_import=t0.recipes --gin_file="$here/run.gin" \
  --checkpoint="$out/pretrain/model" --finetune_steps=400 --model_dir="$out/qa/model" "$@"
t5_mesh_transformer --module_import=t0.recipes \
  --gin_file="$out/qa/model/operative_config.gin" --gin_file="$here/evaluate.gin" \
  --gin.CHECKPOINT_PATH="'$out/qa/model'" --gin.EVAL_OUTPUT_DIR="'$out/qa/eval'"
t0 report "$out/qa/eval" --metrics "$out/qa/model" --output "$out/qa/report"
