#!/usr/bin/env bash
# Trains a model with a layer of this folder on the rows of examples/own_prompts, ranks answers,
# reports. Flags go to the training, such as --gin.TRAIN_STEPS=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}/custom_model
export T0_DATA_DIR=$here/../own_prompts/data T0_VOCAB=$here/../own_prompts/data/tickets.model
# Python must find squared_relu.py in this folder. gin finds run.gin with --gin_search_paths.
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

t5_mesh_transformer --module_import=t0.seqio_tasks --gin_search_paths="$here" --gin_file=run.gin \
  --model_dir="$out/model" "$@"
t5_mesh_transformer --module_import=t0.seqio_tasks --gin_search_paths="$here" \
  --gin_file="$out/model/operative_config.gin" --gin_file=evaluate.gin \
  --gin.CHECKPOINT_PATH="'$out/model'" --gin.EVAL_OUTPUT_DIR="'$out/eval'"
t0 report "$out/eval" --metrics "$out/model" --output "$out/report"
