"""Evaluation: scores checkpoints on tasks, and writes results files.

| call | purpose |
|---|---|
| `evaluate.rank_evaluate(arguments)` | scores answer choices, writes `results_<step>.json` |
| `decoded.with_results(decode, facts)` | writes `decoded_<step>.json` and predictions |
| `perplexity.measure(arguments)` | writes `perplexity_<step>.json` |
| `mesh_model.build_model(arguments)`, `ShapedPrograms` | build a model and its programs |
| `scorer.MeshScorer(model, types, placement)` | computes log-likelihoods of choices |
| `records.cached_records(task, files)`, `sort_records` | read a task's records, sort them |
| `examples.count_task(facts, read, lengths)` | truncates, counts and checks examples with choices |
| `batching.plan_packed`, `plan_padded`, `SortedPlan` | divide choices into batches |
| `ranking.rank(runs, ...)` | runs a rank evaluation on any engine |
| `rank_metrics.RankMetrics(metric_fns)` | computes T5's rank classification |
| `rank_metrics.answer_lines(decoder, task, most)` | decodes answers, judges exact match |
| `results.CheckpointResults(folder, ...)` | writes and resumes results |
| `results.ShardResults(folder, ...)` | writes the results of one shard |
| `merging.merge(folders, output)` | merges the results of all shards |

A scored choice passes through `records`, `examples`, `batching`, `scorer`, `ranking`,
`rank_metrics` and `results`. This package exports nothing, because some of its modules import
TensorFlow. `ranking` and the modules that it imports do not need TensorFlow, so the PyTorch engine
uses them too.
"""
