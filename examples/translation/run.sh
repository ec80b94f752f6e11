#!/usr/bin/env bash
# Fine-tunes the model of examples/pretrain on a task of this folder, then translates.
# Flags go to the training, such as --finetune_steps=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with mt/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}
# Python finds short_pairs.py there, and gin run.gin.
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

t5_mesh_transformer --gin_search_paths="$here" --gin_file=run.gin \
  --checkpoint="$out/pretrain/model" --finetune_steps=600 --model_dir="$out/translation/model" "$@"
t5_mesh_transformer --gin_search_paths="$here" \
  --gin_file="$out/translation/model/operative_config.gin" --gin_file=evaluate.gin \
  --gin.CHECKPOINT_PATH="'$out/translation/model'" --gin.EVAL_OUTPUT_DIR="'$out/translation/eval'"
t0 report "$out/translation/eval" --metrics "$out/translation/model" --output "$out/translation/report"
