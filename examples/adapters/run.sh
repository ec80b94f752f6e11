#!/usr/bin/env bash
# Trains a base on three of the quickstart's datasets, adapts it to a fourth one with (IA)3, LoRA and
# full tuning, and compares the methods over three seeds. Needs PyTorch. STEPS sets the steps of an
# adaptation; flags go to the training of the base, such as --gin.TRAIN_STEPS=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}/adapters quickstart=${QUICKSTART:-quickstart_out}
export T0_DATA_DIR=$quickstart/data:$here T0_VOCAB=$quickstart/vocabulary/mini.model
task=social_i_qa_kind_of_question_score_eval

evaluate() { # a folder with checkpoints
  t0 eval "$1" --engine=torch --tasks=$task --additional_task_cache_dirs="$out/cache" --output="$1/eval"
}
adapt() { # name, run file, learning rate
  for seed in 0 1 2; do
    t5_mesh_transformer "${cached[@]}" --gin_file="runs/$2.gin" --gin_file="$here/adapt.gin" \
      --gin_param="learning_rate_schedules.constant_learning_rate.learning_rate = $3" \
      --gin.MIXTURE_OR_TASK_NAME="'$task'" --seed=$seed --checkpoint="$out/base" \
      --finetune_steps="${STEPS:-12}" --model_dir="$out/$1/$seed"
    evaluate "$out/$1/$seed"
  done
}
named() { # the three evaluations of a method, as t0 report wants them
  echo "$1=$out/$1/0/eval,$out/$1/1/eval,$out/$1/2/eval"
}

python -c 'if True:
  import pathlib, sys
  from t0.cli import quickstart
  quickstart.fetch(pathlib.Path(sys.argv[1]))
  quickstart.train_vocabulary(pathlib.Path(sys.argv[1]))' "$quickstart"
cached=(--engine=torch --module_import=t0.seqio_tasks --additional_task_cache_dirs="$out/cache")
seqio_cache_tasks --module_import=t0.seqio_tasks --output_cache_dir="$out/cache" \
  --tasks=adapters_base --splits=train
seqio_cache_tasks --module_import=t0.seqio_tasks --output_cache_dir="$out/cache" --tasks=$task
t5_mesh_transformer "${cached[@]}" --gin_file="$here/base.gin" --model_dir="$out/base" "$@"
evaluate "$out/base"
adapt ia3 tfew 0.03
adapt lora lora 0.003
adapt full finetune 0.003
t0 report base="$out/base/eval" "$(named ia3)" "$(named lora)" "$(named full)" \
  --metrics "$out"/{ia3,lora,full}/0 --output "$out/report"
