"""Inference: predictions for inputs from a checkpoint. `jobs` registers gin's `t0.infer`.

| call | what it does |
|---|---|
| `predict.predict(model, ...)` | writes the predictions that gin configures |
| `jobs.make_jobs(settings, run)`, `make_t5_jobs(run)` | the inputs, and the files |
| `prediction_jobs.PredictionJob(source, ...)` | a source of inputs with settings and a file |
| `inputs.open_file`, `batches` | the lines of a file; batches of similar length |
| `task_inputs.open_task`, `cached_inputs.open_cache` | inputs through SeqIO, or from a cache |
| `prediction_loop.predict_checkpoints(...)` | predicts jobs with any engine |
| `generator.MeshGenerator(model, types, placement, method)` | predicts tokens |
| `text_decoder.TextDecoder`, `evaluation_decoder` | decodes texts in memory, for evaluations |
| `methods.DecodingMethod`, `search.search(method)` | greedy search, sampling, beam search |
| `cached_attention.cache_attention(decoder)` | attention with cached keys and values |
| `prediction_file.PredictionFile(path, facts)` | the file, and finished batches |

Another engine has `methods`, `inputs`, `cached_inputs`, `prediction_jobs`, `prediction_file` and
`prediction_loop` without TensorFlow.
"""
