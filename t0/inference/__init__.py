"""Inference: a checkpoint and inputs in, predictions out. Importing it registers gin's `t0.infer`.

| call | what it does |
|---|---|
| `predict.predict(model, ...)` | writes the predictions that gin configures |
| `jobs.jobs(settings, run)`, `jobs_of_t5(run)` | what is to be predicted, and where it goes |
| `inputs.of_task`, `of_file`, `batches` | the inputs, in batches of like length |
| `generator.Generator(model, types, placement, method)` | predicts tokens with one set of weights |
| `search.search(method)` | greedy search, sampling, beam search |
| `cached_attention.cache_attention(decoder)` | attention with cached keys and values |
| `prediction_file.PredictionFile(path, facts)` | the file, and what a killed run finished |
"""

from t0.inference.jobs import InferenceSettings

__all__ = ["InferenceSettings"]
