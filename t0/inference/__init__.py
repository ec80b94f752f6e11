"""Inference: predicts texts with a checkpoint. `jobs` registers the settings `t0.infer` with gin.

| call | purpose |
|---|---|
| `predict.predict(model, ...)` | write the predictions that gin configures |
| `jobs.make_jobs(settings, run)`, `make_t5_jobs(run)` | create prediction jobs from settings |
| `prediction_jobs.PredictionJob(source, ...)` | a source of inputs, its settings, its output file |
| `inputs.open_file`, `batches` | read the lines of a file; sort inputs into batches |
| `task_inputs.open_task`, `cached_inputs.open_cache` | read a task with SeqIO, or from its cache |
| `prediction_loop.predict_checkpoints(...)` | run jobs with any engine |
| `generator.MeshGenerator(model, types, placement, method)` | predict tokens |
| `text_decoder.TextDecoder`, `evaluation_decoder` | decode texts in memory, for evaluations |
| `row_predictions.rank_rows`, `write_predictions` | `t0 predict`: predictions for a file's rows |
| `methods.DecodingMethod`, `search.search(method)` | greedy search, sampling, beam search |
| `cached_attention.cache_attention(decoder)` | attention with cached keys and values |
| `prediction_file.PredictionFile(path, facts)` | the output file, and finished batches |

`methods`, `inputs`, `cached_inputs`, `prediction_jobs`, `prediction_file`, `prediction_loop` and
`row_predictions` do not import TensorFlow, so that other engines can use them.
"""
