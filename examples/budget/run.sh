#!/usr/bin/env bash
# Fifteen minutes of nanoT5's recipe on DATA/text. Flags go to the training, such as
# --gin.TRAIN_STEPS=20
set -euo pipefail
out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with text/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

t5_mesh_transformer --module_import=t0.recipes --gin_file=runs/budget_15min_cpu.gin \
  --gin.MIXTURE_OR_TASK_NAME="'text_span_corruption'" --model_dir="$out/budget/model" "$@"
t0 report --metrics "$out/budget/model" --output "$out/budget/report"
