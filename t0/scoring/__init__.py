"""Evaluation: scores checkpoints on tasks, and writes results files.

| call | purpose |
|---|---|
| `evaluate.rank_evaluate(model, ...)` | scores every answer choice; `results_<step>.json` |
| `decoded.with_results(eval_model, decode)` | `decoded_<step>.json` and predictions |
| `perplexity.measure(spec, datasets, ...)` | nats per target token; `perplexity_<step>.json` |
| `mesh_model.MeshModel`, `build_model`, `restore_variables` | a model off TPU, also for inference |
| `scorer.MeshScorer(model, types, placement)` | log-likelihoods of answer choices |
| `packed_model.packed_logits(model, ...)` | a T5 on rows of several inputs and choices |
| `records.cached_records(task, files, sorter)` | a task's records in order, without TensorFlow |
| `examples.count_task(facts, read, lengths)` | truncates, counts and checks examples with choices |
| `batching.plan_packed`, `plan_padded`, `SortedPlan` | divide choices into batches |
| `ranking.rank(runs, ...)` | the evaluation itself, for any engine |
| `rank_metrics.RankMetrics(metric_fns)` | T5's rank classification, one example at a time |
| `results.CheckpointResults(folder, ...)` | writes results, resumes interrupted evaluations |
| `results.ShardResults(folder, ...)` | writes the results of a shard, a subset of the batches |
| `answers.answer_lines(decoder, task, most)` | decoded answers, judged by exact match |
| `merging.merge(folders, output)` | merges shards into the files of one evaluation |

A scored choice passes through `records`, `examples`, `batching`, `scorer`, `ranking`,
`rank_metrics` and `results`. This package exports nothing, because some modules import TensorFlow.
`ranking` and its imports do not; they also serve the PyTorch engine.
"""
