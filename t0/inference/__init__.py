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
| `text_decoder.TextDecoder`, `evaluation_decoder` | decode texts in memory |
| `row_predictions.rank_rows`, `write_predictions` | predict for the rows of a file |
| `prediction_table.write_table(path, ...)` | write rows and predictions to a file |
| `methods.DecodingMethod`, `search.search(method)` | choose the next tokens |
| `cached_attention.cache_attention(decoder)` | cache keys and values in attention |
| `prediction_file.PredictionFile(path, facts)` | write the output file batch by batch |

`methods`, `inputs`, `cached_inputs`, `prediction_jobs`, `prediction_file`, `prediction_loop`,
`prediction_table` and `row_predictions` do not import TensorFlow, so that other engines can use
them.
"""
