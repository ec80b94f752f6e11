"""Writes results of a rank evaluation in the format of lm-evaluation-harness.

    write_results([Path("eval/results_1000.json")], Path("eval/lm_eval"))

    eval/lm_eval/<model>/results_2026-11-23T01-48-40.json
    eval/lm_eval/<model>/samples_super_glue_rte_GPT_3_style_score_eval_2026-11-23T01-48-40.jsonl

A prompt is a task with the metric `acc`; a dataset is a group with `prompt_mean` and
`prompt_median`, as in what `t0 export-eval` writes; and `t0_prompts` is the group of the datasets.

Assumptions: the harness says of each choice whether greedy decoding gives it; ranking does not find
that out, so it is null here. Where log-likelihoods include the EOS of the choices, the
continuations end in T5's `</s>`.
"""

import datetime
import hashlib
import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import t0
from t0.catalogue import SCORE_EVAL, task_name
from t0.errors import UserError
from t0.files import path_inside, publishing
from t0.lm_eval.exported_tasks import T5_EOS
from t0.reports.evaluations import EvaluatedRun, RankedTask, read_runs
from t0.reports.lm_eval_samples import WITHOUT_EOS

GROUP = "t0_prompts"
_UNKNOWN = "N/A"
_NOT_IN_NAMES = re.compile(r'["<>:/|\\?*\[\]]+')


def write_results(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Writes the ranked runs of result files, and returns the results files, one for each run.

    Args:
      paths: result files of ours, with `scores/` beside them.
      folder: the folder for a folder of each model.

    Raises:
      UserError: if a file is malformed, or a task has no scores.
    """
    return [_write_run(run, folder) for run in read_runs(paths) if run.ranked]


def _write_run(run: EvaluatedRun, folder: Path) -> Path:
    for task in run.tasks:
        if task.scores is None or not len(task.scores):
            raise UserError(
                f"{run.path}: task '{task.name}' has no per-example scores; wanted "
                f"{run.path.parent / 'scores'}/{task.name}_{run.step}.jsonl. Evaluate it again."
            )
    model = str(run.facts.get("source") or run.facts.get("checkpoint") or run.name)
    moment = _moment(run)
    date = moment.strftime("%Y-%m-%dT%H-%M-%S.%f")
    eos = "" if run.facts.get("normalisation") == WITHOUT_EOS else T5_EOS
    inside = Path(path_inside(str(folder), _NOT_IN_NAMES.sub("__", model)))
    with publishing.writing(str(inside)):
        inside.mkdir(parents=True, exist_ok=True)
    for task in run.tasks:
        lines = _samples(task, eos)
        publishing.write_whole(str(inside / f"samples_{task.name}_{date}.jsonl"), lines)
    content = _results(run, model, moment)
    path = inside / f"results_{date}.json"
    publishing.write_whole(str(path), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return path


def _moment(run: EvaluatedRun) -> datetime.datetime:
    """Returns when the results were made, as they or else their file say."""
    try:
        return datetime.datetime.fromisoformat(str(run.facts.get("created")))
    except ValueError:
        made = run.path.stat().st_mtime
        return datetime.datetime.fromtimestamp(made, tz=datetime.timezone.utc)


def _samples(task: RankedTask, eos: str) -> Iterator[str]:
    for number, example in enumerate(task.scores.examples()):
        choices = [choice.text for choice in example.choices]
        continuations = [choice + eos for choice in choices]
        inputs = example.inputs or ""
        doc = {
            "idx": example.idx,
            "dataset": task.dataset,
            "prompt": task.prompt,
            "task": task.name,
            "inputs": inputs,
            "choices": choices,
            "continuations": continuations,
            "gold": example.gold,
        }
        answers = [[str(choice.log_likelihood), None] for choice in example.choices]
        sample = {
            "doc_id": number,
            "doc": doc,
            "target": str(example.gold),
            "arguments": {
                f"gen_args_{place}": {"arg_0": inputs, "arg_1": f" {continuation}"}
                for place, continuation in enumerate(continuations)
            },
            "resps": [[answer] for answer in answers],
            "filtered_resps": answers,
            "filter": "none",
            "metrics": ["acc"],
            "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _hash(inputs),
            "target_hash": _hash(str(example.gold)),
            "acc": float(example.prediction == example.gold),
        }
        yield json.dumps(sample, ensure_ascii=False) + "\n"


def _results(run: EvaluatedRun, model: str, moment: datetime.datetime | None) -> dict[str, Any]:
    split = run.facts.get("split")
    groups, members = _groups(run.tasks)
    names = [task.name for task in run.tasks]
    metrics = {name: {"prompt_mean": True, "prompt_median": True} for name in groups}
    metrics |= {name: {"acc": True} for name in names}
    return {
        "results": groups | {task.name: _task_metrics(task) for task in run.tasks},
        "groups": groups,
        "group_subtasks": members,
        "configs": {name: _config(name, split) for name in names},
        "versions": dict.fromkeys((*groups, *names), 1.0),
        "n-shot": dict.fromkeys((*groups, *names), 0),
        "higher_is_better": metrics,
        "n-samples": {
            task.name: {
                "original": task.examples + sum(task.excluded.values()),
                "effective": len(task.scores),
            }
            for task in run.tasks
        },
        "config": {
            "model": "t0",
            "model_args": {
                key: run.facts[key]
                for key in ("checkpoint", "vocabulary", "sequence_length", "inputs_eos")
                if key in run.facts
            },
            "model_dtype": run.facts.get("dtype"),
            "limit": run.facts.get("examples"),
        },
        "date": moment.timestamp(),
        "t0_version": t0.__version__,
        "model_source": "t0",
        "model_name": model,
        "model_name_sanitized": _NOT_IN_NAMES.sub("__", model),
    }


def _task_metrics(task: RankedTask) -> dict[str, Any]:
    right = task.scores.correct
    error = float(np.std(right, ddof=1)) / len(right) ** 0.5 if len(right) > 1 else _UNKNOWN
    return {
        "name": task.name,
        "alias": task.name,
        "sample_len": len(right),
        "acc,none": float(right.mean()),
        "acc_stderr,none": error,
    }


def _groups(tasks: Sequence[RankedTask]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns the metrics of the groups, the group of all datasets first, and their members."""
    by_dataset: dict[str, list[RankedTask]] = {}
    for task in tasks:
        by_dataset.setdefault(task_name(task.dataset, None, None) + SCORE_EVAL, []).append(task)
    found, counts = {}, {}
    for name, members in by_dataset.items():
        accuracies = [float(task.scores.correct.mean()) for task in members]
        counts[name] = sum(len(task.scores) for task in members)
        middle = (statistics.fmean(accuracies), statistics.median(accuracies))
        found[name] = _group_metrics(name, *middle, counts[name])
    over = [
        statistics.fmean(one[f"{metric},none"] for one in found.values())
        for metric in ("prompt_mean", "prompt_median")
    ]
    members = {name: [task.name for task in listed] for name, listed in by_dataset.items()}
    whole = _group_metrics(GROUP, *over, sum(counts.values()))
    return {GROUP: whole} | found, {GROUP: [*found]} | members


def _group_metrics(name: str, mean: float, median: float, examples: int) -> dict[str, Any]:
    return {
        "name": name,
        "alias": name,
        "sample_len": examples,
        "prompt_mean,none": mean,
        "prompt_mean_stderr,none": _UNKNOWN,
        "prompt_median,none": median,
        "prompt_median_stderr,none": _UNKNOWN,
    }


def _config(name: str, split: object) -> Mapping[str, Any]:
    return {
        "task": name,
        "test_split": split,
        "doc_to_text": "inputs",
        "doc_to_target": "gold",
        "doc_to_choice": "continuations",
        "target_delimiter": " ",
        "output_type": "multiple_choice",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
