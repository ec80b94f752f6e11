"""Evaluation: a checkpoint and tasks in, results files out.

| call | what it does |
|---|---|
| `evaluate.rank_evaluate(model, ...)` | scores every answer choice; `results_<step>.json` |
| `decoded.with_results(eval_model, decode)` | `decoded_<step>.json` and predictions |
| `perplexity.with_printed_perplexity(get_estimator)` | Mesh TensorFlow measures; prints a line |
| `mesh_model.MeshModel`, `build_model`, `restore_variables` | a model off TPU, also for inference |
| `scorer.Scorer(model, types, placement)` | log-likelihoods of choices; encodes each input once |
| `packed_batches.plan_packed(tokens, ...)` | the few shapes of packed rows of a run |
| `packed_model.packed_logits(model, ...)` | a T5 on rows of several inputs and choices |
| `batch_planning.plan_batches(sizes, ...)` | the few shapes of padded batches |
| `ranking.rank(runs, ...)` | the evaluation itself, for any engine |
| `task_records.read_task(dataset, lengths, ...)` | SeqIO's records to examples on local disk |
| `documents.documents_of(source, ...)` | which examples share a document |
| `cached_records.cached_records(task, files)` | the records of a cache, without TensorFlow |
| `rank_metrics.RankMetrics(metric_fns)` | T5's rank classification, one example at a time |
| `results.CheckpointResults(folder, ...)` | writes results, resumes interrupted evaluations |
| `answers.answer_lines(decoder, task, most)` | decoded answers, judged by exact match |
| `shards.ShardResults(folder, ...)` | the same of a shard, which is some of the batches |
| `merging.merge(folders, output)` | shards become the files of one evaluation |

A scored choice goes through `reading`, `packed_batches`, `scorer`, `ranking`, `rank_metrics` and
`results`. Nothing is exported here: some modules import TensorFlow; `ranking` and what it imports
do not, and serve the PyTorch engine, too.
"""
