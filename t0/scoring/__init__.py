"""Evaluation: scores checkpoints on tasks, and writes results files.

| call | purpose |
|---|---|
| `evaluate.rank_evaluate(model, ...)` | scores answer choices, writes `results_<step>.json` |
| `decoded.with_results(eval_model, decode)` | writes `decoded_<step>.json` and predictions |
| `perplexity.measure(spec, datasets, ...)` | writes `perplexity_<step>.json` |
| `mesh_model.MeshModel`, `build_model`, `restore_variables` | build a model, restore weights |
| `scorer.MeshScorer(model, types, placement)` | computes log-likelihoods of choices |
| `packed_model.packed_logits(model, ...)` | runs a T5 on packed inputs and choices |
| `records.cached_records(task, files, sorter)` | reads a task's records in order |
| `examples.count_task(facts, read, lengths)` | truncates, counts and checks examples with choices |
| `batching.plan_packed`, `plan_padded`, `SortedPlan` | divide choices into batches |
| `ranking.rank(runs, ...)` | runs a rank evaluation on any engine |
| `rank_metrics.RankMetrics(metric_fns)` | computes T5's rank classification |
| `results.CheckpointResults(folder, ...)` | writes and resumes results |
| `results.ShardResults(folder, ...)` | writes the results of one shard |
| `answers.answer_lines(decoder, task, most)` | decodes answers, judges exact match |
| `merging.merge(folders, output)` | merges the results of all shards |

A scored choice passes through `records`, `examples`, `batching`, `scorer`, `ranking`,
`rank_metrics` and `results`. This package exports nothing, because some of its modules import
TensorFlow. `ranking` and the modules that it imports do not need TensorFlow, so the PyTorch engine
uses them too.
"""
