#!/usr/bin/env bash
# Prints the rates of FLAN's mixtures of T0's prompts and one row in each of the four forms, and caches
# the mixtures. Flags go to the caching, such as --dry_run, which estimates size and time
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_DATA_DIR=${DATA:?names the folder with t5.spiece.model, see examples/README.md}:$here
export T0_VOCAB=${T0_VOCAB:-$DATA/t5.spiece.model}

t0 tasks t0_flan --rates --steps=1000
t0 show 'social_i_qa_I_was_wondering_[05]shot(_opt)?' --all_prompts --split=train --row=3
seqio_cache_tasks --module_import=t0.seqio_tasks --output_cache_dir="$out/flan_t0/cache" \
  --tasks=t0_flan --splits=train "$@"
