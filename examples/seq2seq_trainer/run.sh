#!/usr/bin/env bash
# Caches DATA/qa/squad, fine-tunes a T5 on the cache with Hugging Face's Seq2SeqTrainer, answers
# questions. Flags go to the training, such as --max_steps=20
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}/seq2seq_trainer
export T0_DATA_DIR=${DATA:?names the folder with qa/ and t5.spiece.model, see examples/README.md}
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

seqio_cache_tasks --module_import=t0.recipes --tasks=qa_squad --output_cache_dir="$out/cache"
accelerate launch "$here/train.py" "$out/cache/qa_squad" \
  --model="${MODEL:-google/t5-v1_1-small}" --output="$out/model" "$@"
t0 eval "$out/model" --module_import=t0.recipes --tasks=qa_squad --additional_task_cache_dirs="$out/cache" \
  --vocab="$T0_VOCAB" --lengths=inputs=512,targets=32 --limit=200 --output="$out/eval"
