#!/usr/bin/env bash
# Caches prompted tasks, fine-tunes the model of examples/pretrain on them, ranks answers, reports.
# Flags go to the training, such as --finetune_steps=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with t5.spiece.model, see examples/README.md}:$here
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

cached=(--module_import=t0.seqio_tasks --additional_task_cache_dirs="$out/t0_finetune/cache")
seqio_cache_tasks --module_import=t0.seqio_tasks --output_cache_dir="$out/t0_finetune/cache" \
  --tasks=few_prompts_train --splits=train
seqio_cache_tasks --module_import=t0.seqio_tasks --output_cache_dir="$out/t0_finetune/cache" \
  --tasks=few_prompts_score_eval --splits=test
t5_mesh_transformer "${cached[@]}" --gin_file="$here/run.gin" \
  --checkpoint="$out/pretrain/model" --finetune_steps=600 --model_dir="$out/t0_finetune/model" "$@"
t5_mesh_transformer "${cached[@]}" \
  --gin_file="$out/t0_finetune/model/operative_config.gin" --gin_file="$here/evaluate.gin" \
  --gin.CHECKPOINT_PATH="'$out/t0_finetune/model'" --gin.EVAL_OUTPUT_DIR="'$out/t0_finetune/eval'"
t0 report "$out/t0_finetune/eval" --metrics "$out/t0_finetune/model" \
  --output "$out/t0_finetune/report"
