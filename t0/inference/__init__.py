"""Inference: predicts texts with a checkpoint. `jobs` registers the settings `t0.infer` with gin.

| call | purpose |
|---|---|
| `text_decoder.predict(arguments)` | write the predictions that gin configures |
| `jobs.make_jobs(settings, arguments)`, `make_t5_jobs` | create prediction jobs from settings |
| `inputs.open_file`, `batches` | read the lines of a file; sort inputs into batches |
| `task_inputs.open_task`, `cached_inputs.open_cache` | read a task with SeqIO, or from its cache |
| `predictions.PredictionJob(source, ...)` | a source of inputs, its settings, its output file |
| `predictions.predict_checkpoints(...)` | run jobs with any engine, write their files |
| `generator.MeshGenerator(model, types, placement, method)` | predict tokens |
| `text_decoder.TextDecoder`, `evaluation_decoder` | decode texts in memory, for evaluations |
| `row_predictions.rank_rows`, `write_predictions` | `t0 predict`: predictions for a file's rows |
| `inputs.DecodingMethod`, `search.search(method)` | greedy search, sampling, beam search |
| `cached_attention.cache_attention(decoder)` | attention with cached keys and values |

The modules that `t0.torch` imports do not import TensorFlow.
"""
