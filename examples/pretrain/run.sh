#!/usr/bin/env bash
# Pretrains on DATA/text. Flags go to the training: examples/pretrain/run.sh --gin.TRAIN_STEPS=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with text/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

t5_mesh_transformer --module_import=t0.recipes --gin_file="$here/run.gin" \
  --model_dir="$out/pretrain/model" "$@"
t0 report --metrics "$out/pretrain/model" --output "$out/pretrain/report"
