"""Evaluation: ranks, decodes or measures tasks with a checkpoint, and writes results files.

| module | purpose |
|---|---|
| `model` | `Model`, the methods of an engine: it scores, generates or measures |
| `kinds` | finds out whether a task is ranked, decoded or measured |
| `settings` | the settings in gin |
| `eval_datasets` | selects tasks and examples, and finds the rows of the examples |
| `ranking` | ranks answer choices, writes `results_<step>.json` and scores |
| `decoding` | decodes texts, writes `decoded_<step>.json` and predictions |
| `perplexity` | measures losses, writes `perplexity_<step>.json` |
| `task_records`, `records` | read a task's answer choices |
| `ranked_examples` | truncates, counts and checks examples with choices |
| `batching` | divides choices into batches |
| `rank_metrics` | computes T5's rank classification, judges decoded answers |
| `text_metrics`, `prediction_files` | compute the metrics of decoded texts, write the texts |
| `results`, `merging` | write, resume and merge the results of ranking |
| `mesh_model` | builds a Mesh TensorFlow model and its programs |
| `scorer`, `held_out_model` | the models of Mesh TensorFlow that score and that measure |

A scored choice passes through `task_records`, `records`, `examples`, `batching`, a `Model`,
`ranking`, `rank_metrics` and `results`. This package exports nothing, because some of its modules
import TensorFlow. `ranking` and the modules that it imports do not need TensorFlow, so the PyTorch
engine also uses them.
"""
