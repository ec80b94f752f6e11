#!/usr/bin/env bash
# Adapts the model of examples/pretrain to continue texts. Flags go to the training, such as
# --finetune_steps=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with text/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

t5_mesh_transformer --module_import=t0.recipes --gin_file="$here/run.gin" \
  --checkpoint="$out/pretrain/model" --finetune_steps=300 --model_dir="$out/prefix_lm/model" "$@"
t0 report --metrics "$out/prefix_lm/model" --output "$out/prefix_lm/report"
