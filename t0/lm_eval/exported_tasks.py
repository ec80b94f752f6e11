"""Writes prompts as tasks of lm-evaluation-harness: YAML files and JSON Lines of rendered rows.

    exported = export(tasks, "/out/harness", split="validation", group="t0_eval_score_eval")
    exported[0].name                             # "super_glue_rte_GPT_3_style_score_eval"

    super_glue_rte_GPT_3_style_score_eval.yaml     one prompt, metric acc
    super_glue_rte_score_eval.yaml                 a dataset: mean and median over its prompts
    t0_eval_score_eval.yaml                        the group of the datasets, equally weighted
    rows/super_glue_rte_GPT_3_style_score_eval.jsonl
    t0_prompts.py                                  the functions that the YAML files refer to

A group in the harness can average only over tasks. So each dataset is also exported as one task
with the rows of all its prompts, and functions in `t0_prompts.py` average over these prompts. This
is a row in a JSON Lines file:

    {"idx": 0, "numbered_by": "row", "dataset": "super_glue/rte", "prompt": "GPT-3 style",
     "task": "super_glue_...", "inputs": "... True or False?", "choices": ["True", "False"],
     "continuations": ["True</s>", "False</s>"], "gold": 1}

`idx` is the number of the row in the dataset, as in our own results. So the same `idx` means the
same row in every prompt, even if a prompt drops rows.

Assumptions: as in our evaluation, an example is scored only if exactly one of its choices is
correct. All other examples are left out and counted. T0's scores include the log-likelihood of EOS.
The harness does not add EOS to a continuation, so each exported continuation ends with EOS.
"""

import dataclasses
import importlib.resources
import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from t0.caching.row_numbers import ROW
from t0.catalogue import SCORE_EVAL, PromptedTask
from t0.catalogue.prompted_task import task_name
from t0.errors import UserError
from t0.files import path_inside, paths, publishing
from t0.prompts import RowReport
from t0.sources import hidden_label

FUNCTIONS = "t0_prompts.py"
# The EOS of T5: its tokenizers read this text as the EOS token.
T5_EOS = "</s>"
_METRICS_OF_PROMPTS = ("prompt_mean", "prompt_median")


@dataclasses.dataclass(frozen=True)
class ExportedPrompt:
    """An exported prompt.

    Attributes:
      name: the task's name, both in the harness and in our results.
      dataset_task: the name of the task that holds all prompts of the same dataset.
      examples: the number of exported rows.
      left_out: reason -> number of rows that were left out for this reason.
    """

    name: str
    dataset_task: str
    examples: int
    left_out: Mapping[str, int]


class _Function(str):
    """The name of a function, which is written to YAML as a reference (`!function`)."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", name))


def export(
    tasks: Sequence[PromptedTask],
    output: str,
    *,
    split: str,
    group: str,
    eos: str = T5_EOS,
    limit: int | None = None,
) -> tuple[ExportedPrompt, ...]:
    """Writes tasks for lm-evaluation-harness into a new folder, which appears when it is complete.

    Args:
      tasks: prompts with answer choices.
      output: the folder; if it exists, it must be empty.
      split: the split to export.
      group: the name of the group that contains all datasets in the harness.
      eos: the text that is appended to each choice and scored; "" to append nothing.
      limit: the number of rows of the dataset to export, from the first; None for all.

    Returns:
      the exported prompts.

    Raises:
      UserError: if a task is few-shot, the folder is remote or not empty, data is missing or
        unreadable, two tasks or groups would have the same name, or no row can be scored.
    """
    if paths.is_remote(output):
        raise UserError(
            f"--output {output} is not on this machine, but the harness reads only local folders. "
            "Choose a local one."
        )
    if few_shot := [task.name for task in tasks if task.few_shot is not None]:
        raise UserError(
            f"{few_shot[0]} is few-shot, and the harness adds exemplars itself. Export its zero-shot "
            "task, and give the harness --num_fewshot"
        )
    output = output.rstrip("/") or output
    if paths.exists(output) and (not paths.is_folder(output) or paths.list_names(output)):
        raise UserError(f"{output} exists already: choose a new or empty folder as --output.")
    by_dataset: dict[str, list[PromptedTask]] = {}
    for task in tasks:
        by_dataset.setdefault(dataset_task(task), []).append(task)
    _check_names([*by_dataset, *(task.name + SCORE_EVAL for task in tasks), group])
    staging = f"{output}.{publishing.unfinished_tag()}"
    try:
        exported = []
        for name, members in by_dataset.items():
            written = [_write_prompt(staging, task, name, split, eos, limit) for task in members]
            scored_prompts = [prompt.name for prompt in written if prompt.examples]
            if scored_prompts:
                _write_yaml(staging, name, _make_dataset_yaml(name, scored_prompts, split))
            exported += written
        scored = {prompt.dataset_task for prompt in exported if prompt.examples}
        done = [name for name in by_dataset if name in scored]
        if not done:
            raise UserError(
                f"nothing to score in split '{split}': no row of {len(tasks)} tasks has exactly "
                "one correct choice (test splits often hide labels). Choose another --split."
            )
        _write_yaml(staging, group, _make_group_yaml(group, done))
        functions = importlib.resources.files("t0.lm_eval").joinpath(FUNCTIONS).read_text("utf-8")
        publishing.write_whole(path_inside(staging, FUNCTIONS), functions)
        publishing.publish_folder(staging, output, last=FUNCTIONS, replace=False)
    finally:
        paths.remove(staging)
    return tuple(exported)


def dataset_task(task: PromptedTask) -> str:
    """Returns the name of the exported task that has all prompts of the dataset of `task`.

    Each round of ANLI counts as its own dataset.
    """
    return task_name(task.dataset, task.subset, None, task.suffix) + SCORE_EVAL


def rendered_rows(
    task: PromptedTask,
    split: str,
    report: RowReport,
    *,
    eos: str = T5_EOS,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a prompt in the form that the harness reads.

    Args:
      task: the prompt.
      split: the split to render.
      report: a report in which the rows and the left-out rows are counted.
      eos: the text that is appended to each choice; "" to append nothing.
      limit: the number of rows to render, from the first; None for all. So all prompts get the same
        rows, even if some prompt drops a row.
    """
    dataset = "/".join(filter(None, (task.dataset, task.subset, task.suffix.strip("_"))))
    for index, row in enumerate(task.open(split).rows(0, limit)):
        example = task.compiled.example(row, index)
        target = report.target(example, hidden_label(task.dataset, row), index)
        if target is None:
            continue
        if example.choices.count(target) == 1:
            yield {
                "idx": index,
                "numbered_by": ROW,
                "dataset": dataset,
                "prompt": task.template.name,
                "task": task.name + SCORE_EVAL,
                "inputs": example.inputs,
                "choices": example.choices,
                "continuations": [choice + eos for choice in example.choices],
                "gold": example.choices.index(target),
            }


def _write_prompt(
    folder: str, task: PromptedTask, dataset: str, split: str, eos: str, limit: int | None
) -> ExportedPrompt:
    name = task.name + SCORE_EVAL
    report = RowReport(hide_labels=True, ranked=True, drops_unlabelled=not task.template.published)
    rows = rendered_rows(task, split, report, eos=eos, limit=limit)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    if lines:
        with publishing.writing(folder):
            paths.make_folder(posixpath.join(folder, "rows"))
        publishing.write_whole(path_inside(f"{folder}/rows", f"{name}.jsonl"), lines)
        _write_yaml(folder, name, _make_prompt_yaml(name, dataset, split))
    left_out = {reason: count for reason, count in report.counts.items() if reason != "rows"}
    return ExportedPrompt(name, dataset, len(lines), left_out)


def _make_task_yaml(name: str, prompts: Sequence[str], split: str) -> dict[str, Any]:
    return {
        "task": name,
        "custom_dataset": _Function("t0_prompts.load"),
        "dataset_kwargs": {"prompts": [*prompts], "split": split},
        "test_split": split,
        "output_type": "multiple_choice",
        "doc_to_text": "inputs",
        "doc_to_choice": "continuations",
        "doc_to_target": "gold",
        # A space before the choice. T5's tokenizers drop it; the tokenizers of other models need
        # it.
        "target_delimiter": " ",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }


def _make_prompt_yaml(name: str, dataset: str, split: str) -> dict[str, Any]:
    metric = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
    tag = dataset.removesuffix(SCORE_EVAL) + "_each_prompt"
    return _make_task_yaml(name, [name], split) | {"tag": tag, "metric_list": [metric]}


def _make_dataset_yaml(name: str, prompts: Sequence[str], split: str) -> dict[str, Any]:
    aggregations = {"acc": "mean"} | {
        metric: _Function(f"t0_prompts.{metric}") for metric in _METRICS_OF_PROMPTS
    }
    return _make_task_yaml(name, prompts, split) | {
        "process_results": _Function("t0_prompts.process_results"),
        "metric_list": [
            {"metric": metric, "aggregation": function, "higher_is_better": True}
            for metric, function in aggregations.items()
        ],
    }


def _make_group_yaml(name: str, datasets: Sequence[str]) -> dict[str, Any]:
    return {
        "group": name,
        "task": [*datasets],
        # Every dataset has the same weight, even if the datasets differ in size.
        "aggregate_metric_list": [
            {"metric": metric, "aggregation": "mean", "weight_by_size": False}
            for metric in _METRICS_OF_PROMPTS
        ],
        "metadata": {"version": 1.0},
    }


def _write_yaml(folder: str, name: str, content: Mapping[str, Any]) -> None:
    text = yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    publishing.write_whole(path_inside(folder, f"{name}.yaml"), text)


def _check_names(names: Sequence[str]) -> None:
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise UserError(
            f"two of the harness's tasks or groups would have the name '{duplicates[0]}'. Give the "
            "group another name (--group), or the template."
        )
