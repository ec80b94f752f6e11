"""Inference: predictions for inputs from a checkpoint. Importing it registers gin's `t0.infer`.

| call | what it does |
|---|---|
| `predict.predict(model, ...)` | writes the predictions that gin configures |
| `jobs.jobs(settings, run)`, `jobs_of_t5(run)` | the inputs, and the files for the predictions |
| `inputs.of_task`, `of_file`, `batches` | the inputs, in batches of similar length |
| `generator.Generator(model, types, placement, method)` | predicts tokens with one set of weights |
| `search.search(method)` | greedy search, sampling, beam search |
| `cached_attention.cache_attention(decoder)` | attention with cached keys and values |
| `prediction_file.PredictionFile(path, facts)` | the file, and a killed run's finished batches |
"""

from t0.inference.jobs import InferenceSettings

__all__ = ["InferenceSettings"]
