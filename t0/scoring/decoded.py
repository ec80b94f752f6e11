"""Mode `eval`: Mesh TensorFlow decodes and T5's metrics judge; what they found is written down.

For each checkpoint, beside the lists of texts that Mesh TensorFlow writes:

    <model_dir>/validation_eval/decoded_1000.json
    {"schema": 1, "run": {...}, "tasks": {"mt_en_de": {"examples": 2737, "metrics": {"bleu": 21.3},
      "signatures": {"bleu": "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"},
      "truncated_inputs": 0, "truncated_targets": 4, "predictions": "predictions/..."}}}
    <model_dir>/validation_eval/predictions/mt_en_de_1000.jsonl

Mesh TensorFlow's own function runs unchanged over datasets whose postprocessing and metrics are
watched. The results appear when all tasks of a step are judged.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t0 import compat
from t0.compat import mesh_dataset, mesh_utils, seqio, t5_metrics
from t0.scoring.predictions import write_predictions
from t0.scoring.results import SCHEMA, write_json
from t0.tasks.translation import Bleu

Lengths = Mapping[str, int] | None


def eval_model(  # noqa: PLR0913 (the signature that mesh_utils.run calls)
    published: Callable[..., None],
    estimator: Any,
    vocabulary: Any,
    sequence_length: Lengths,
    batch_size: int,
    dataset_split: str,
    model_dir: str,
    eval_dataset_fn: Callable[..., list],
    eval_summary_dir: str | None,
    eval_checkpoint_step: Any,
    *,
    eval_dir_suffix: str | None = None,
    **rest: Any,
) -> None:
    """Runs Mesh TensorFlow's `eval_model`, which is `published`, and writes what it finds.

    Args are those of `mesh_utils.eval_model`, see `t0.scoring.evaluate.eval_model`.
    """
    folder = eval_summary_dir or os.path.join(model_dir, f"{dataset_split}_eval")  # noqa: PTH118
    folder += f"_{eval_dir_suffix}" if eval_dir_suffix else ""
    facts = {"model_dir": model_dir, "split": dataset_split, "mode": "eval"}
    watcher = _Watcher(folder, facts, sequence_length)

    def watched_datasets(**arguments: Any) -> list[mesh_dataset.EvalDataset]:
        given = (mesh_dataset.EvalDataset(*one) for one in eval_dataset_fn(**arguments))
        return [watcher.watched(one) for one in given]

    def decode(*args: Any, **kwargs: Any) -> Iterator[str]:
        watcher.begin(kwargs.get("checkpoint_path") or args[-1])
        return published_decode(*args, **kwargs)

    published_decode = compat.replace_in_mesh("decode", decode)
    try:
        published(
            estimator, vocabulary, sequence_length, batch_size, dataset_split, model_dir,
            watched_datasets, eval_summary_dir, eval_checkpoint_step,
            eval_dir_suffix=eval_dir_suffix, **rest,
        )  # fmt: skip
    finally:
        compat.replace_in_mesh("decode", published_decode)


def signature_of(metric: Callable[..., Any]) -> str | None:
    """Returns what a metric's value means to others: sacreBLEU's signature; None for others."""
    if metric is t5_metrics.bleu:
        return Bleu("intl").signature()
    return metric.signature() if isinstance(metric, Bleu) else None


class _Watcher:
    """Sees the predictions and metrics of one checkpoint after another, and writes them."""

    def __init__(self, folder: str, facts: Mapping[str, Any], lengths: Lengths) -> None:
        self._folder = folder
        self._facts = facts
        self._lengths = lengths
        self._tasks: list[str] = []
        self._checkpoint = ""
        self._entries: dict[str, dict[str, Any]] = {}
        self._seen: list[tuple[Mapping[str, Any], str]] = []

    def begin(self, checkpoint: str) -> None:
        """Notes the checkpoint whose predictions come next."""
        self._checkpoint = checkpoint
        self._entries = {}

    def watched(self, dataset: mesh_dataset.EvalDataset) -> mesh_dataset.EvalDataset:
        """Returns the dataset with postprocessing and metrics that are seen here, too."""
        if not dataset.metric_fns:
            return dataset
        self._tasks.append(dataset.name)

        def postprocess(text: str, example: Any = None, is_target: bool = False) -> Any:
            if not is_target:
                self._seen.append((example, text))
            return dataset.postprocess_fn(text, example=example, is_target=is_target)

        last = len(dataset.metric_fns) - 1
        metrics = [
            self._watched_metric(dataset.name, metric, ends=number == last)
            for number, metric in enumerate(dataset.metric_fns)
        ]
        return dataset._replace(postprocess_fn=postprocess, metric_fns=metrics)

    def _watched_metric(
        self, task: str, metric: Callable[..., Any], *, ends: bool
    ) -> Callable[..., Any]:
        def watched(targets: Any, predictions: Any) -> Any:
            found = metric(targets, predictions)
            entry = self._entries.setdefault(task, {"metrics": {}, "signatures": {}})
            if isinstance(found, Mapping):
                entry["metrics"] |= {name: float(value) for name, value in found.items()}
                signature = signature_of(metric)
                if signature:
                    entry["signatures"] |= dict.fromkeys(found, signature)
                    print(f"{task}: {', '.join(found)} is sacreBLEU's {signature}")
            if ends:
                self._finish(task, entry)
            return found

        return watched

    def _finish(self, name: str, entry: dict[str, Any]) -> None:
        task = seqio.TaskRegistry.get(name)
        examples, texts = zip(*self._seen, strict=True) if self._seen else ((), ())
        self._seen = []
        step = int(mesh_utils.get_step_from_checkpoint_path(self._checkpoint))
        path = write_predictions(self._folder, task, step, examples=examples, predictions=texts)
        entry["examples"] = len(examples)
        entry["predictions"] = os.path.relpath(path, self._folder)
        for feature in ("inputs", "targets"):
            cut = entry[f"truncated_{feature}"] = _cut(task, feature, examples, self._lengths)
            if cut:
                most = self._lengths[feature]
                print(f"{name}: {cut:,} of {len(examples):,} {feature} are over {most} tokens")
        if len(self._entries) == len(self._tasks):
            self._write(step)

    def _write(self, step: int) -> None:
        run = {
            **self._facts,
            "step": step,
            "checkpoint": self._checkpoint,
            "sequence_length": dict(self._lengths) if self._lengths else None,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        content = {"schema": SCHEMA, "run": run, "tasks": self._entries}
        path = os.path.join(self._folder, f"decoded_{step}.json")  # noqa: PTH118
        write_json(path, content)
        print(f"results: {path}")


def _cut(task: seqio.Task, feature: str, examples: Any, lengths: Lengths) -> int:
    """Returns how many examples have more tokens of a feature than fit."""
    most = (lengths or {}).get(feature)
    given = task.output_features.get(feature)
    written = f"{feature}_pretokenized"
    if most is None or given is None or not examples or written not in examples[0]:
        return 0
    texts = (example[written] for example in examples)
    tokens = (
        len(given.vocabulary.encode(text.decode("utf-8") if isinstance(text, bytes) else text))
        for text in texts
    )
    return sum(count + int(given.add_eos) > most for count in tokens)
