#!/usr/bin/env bash
# Caches this folder's prompts, trains on them from random weights, ranks answers, reports. Needs
# nothing but this folder. Flags go to the training, such as --gin.TRAIN_STEPS=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}/own_prompts
export T0_DATA_DIR=$here/data T0_VOCAB=$here/data/tickets.model

cached=(--module_import=t0.seqio_tasks --additional_task_cache_dirs="$out/cache")
seqio_cache_tasks --tasks=tickets_train,tickets_score_eval --module_import=t0.seqio_tasks \
  --output_cache_dir="$out/cache"
t5_mesh_transformer "${cached[@]}" --gin_file="$here/run.gin" --model_dir="$out/model" "$@"
t5_mesh_transformer "${cached[@]}" \
  --gin_file="$out/model/operative_config.gin" --gin_file="$here/evaluate.gin" \
  --gin.CHECKPOINT_PATH="'$out/model'" --gin.EVAL_OUTPUT_DIR="'$out/eval'"
t0 report "$out/eval" --metrics "$out/model" --output "$out/report"
