"""Evaluation: a checkpoint and tasks in, results files out.

| call | what it does |
|---|---|
| `evaluate.rank_evaluate(model, ...)` | scores every answer choice; `results_<step>.json` |
| `decoded.with_results(eval_model)` | Mesh TensorFlow decodes; `decoded_<step>.json`, predictions |
| `perplexity.with_printed_perplexity(get_estimator)` | Mesh TensorFlow measures; prints a line |
| `mesh_model.MeshModel`, `build_model`, `restore_variables` | a model off TPU, also for inference |
| `scorer.Scorer(model, types, placement)` | log-likelihoods of choices; encodes each input once |
| `batch_planning.plan_batches(sizes, ...)` | the few batch shapes of a run |
| `reading.read_task(dataset, lengths, ...)` | records to multiple-choice examples on local disk |
| `rank_metrics.RankMetrics(metric_fns)` | T5's rank classification, one example at a time |
| `results.CheckpointResults(folder, ...)` | writes results, resumes interrupted evaluations |

A scored choice goes through `reading`, `batch_planning`, `scorer`, `evaluate`, `rank_metrics` and
`results`. Nothing is exported here: the modules import TensorFlow.
"""
