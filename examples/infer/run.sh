#!/usr/bin/env bash
# Predicts for inputs.txt with the model of examples/own_prompts, greedily and with beams, and
# converts the model for Hugging Face. Flags go to both predictions, such as --gin.BATCH_SIZE=2
set -euo pipefail
here=$(dirname "$0") out=${OUT:-examples_out}
export T0_VOCAB=$here/../own_prompts/data/tickets.model

with=(--gin_file="$out/own_prompts/model/operative_config.gin" --gin_file="$here/run.gin"
  --gin.CHECKPOINT_PATH="'$out/own_prompts/model'" --gin.INPUT_FILE="'$here/inputs.txt'")
t5_mesh_transformer "${with[@]}" --gin.INFER_OUTPUT_DIR="'$out/infer/greedy'" "$@"
t5_mesh_transformer "${with[@]}" --gin.INFER_OUTPUT_DIR="'$out/infer/beam'" --gin.BEAM_SIZE=4 "$@"
t0 convert "$out/own_prompts/model" "$out/infer/huggingface" --to hf
