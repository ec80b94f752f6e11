"""Writes the model card (README.md) of a Hugging Face folder: metadata, prompts and results.

    card = ModelCard("t0_reviews", base_model="bigscience/T0_3B", training_folder="reviews/model")
    results = read_results([Path("reviews/eval")], step=1000)
    text = card.markdown(results)

The metadata are YAML at the start of the card, as the hub reads them. A field that is not known is
left out, because a wrong license or base model is worse than none. `datasets` has only datasets
whose name on the hub is known, which are those of T0's catalogue. The prompts are those that the
training run recorded in `prompts.json`. `model-index` has the accuracy of each dataset as mean and
median over prompts, and the metrics of decoded text.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from t0.catalogue.entries import datasets
from t0.config import saved_config
from t0.errors import UserError, printable, reading
from t0.files.any_path import any_path, read_lines
from t0.prompts.model_prompts import RecordedPrompt, find_model_folder, read_model_prompts
from t0.reports.evaluation_rows import dataset_rows, prompt_rows
from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.paper_tables import escape_markdown
from t0.reports.tables import interval

_MOST_PROMPTS = 20
_TASK = {"type": "text2text-generation", "name": "Text-to-text"}
# A folder of the hub's cache, such as models--bigscience--T0_3B/snapshots/<hash>.
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
_INITIAL = re.compile(rb"run\.init_checkpoint = '([^']+)'")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.A)


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The facts of a model card.

    Attributes:
      name: the model's name.
      base_model: the name on the hub of the model from which training started; "" if unknown.
      license: the hub's identifier of the license, such as "apache-2.0"; "" if unknown.
      training_folder: the model directory of the training run or a checkpoint in it; "" if unknown.
    """

    name: str
    base_model: str = ""
    license: str = ""
    training_folder: str = ""

    def __post_init__(self) -> None:
        """Checks the name of the base model.

        Raises:
          UserError: it cannot be a name on the hub.
        """
        if self.base_model and not _HUB_NAME.fullmatch(self.base_model):
            raise UserError(
                f"--base_model={self.base_model}: expected a model on the hub, OWNER/NAME, such as "
                "bigscience/T0_3B"
            )

    def markdown(self, runs: Sequence[EvaluatedRun]) -> str:
        """Returns the text of the card.

        Args:
          runs: the evaluations of the model, see `read_results`.

        Raises:
          UserError: the recorded prompts cannot be read.
        """
        folder = find_model_folder(self.training_folder) if self.training_folder else None
        prompts = read_model_prompts(folder).prompts if folder else ()
        trained = [hub_name(dataset) for dataset in dict.fromkeys(p.dataset for p in prompts)]
        metadata = {
            "base_model": self.base_model,
            "library_name": "transformers",
            "pipeline_tag": _TASK["type"],
            "license": self.license,
            "datasets": [*dict.fromkeys(name for name in trained if name)],
            "model-index": [{"name": self.name, "results": list_results(runs)}] if runs else [],
        }
        metadata = {key: value for key, value in metadata.items() if value}
        header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=100)
        sections = [f"# {escape_markdown(self.name)}", self._introduction()]
        sections += _describe_prompts(prompts)
        sections += _describe_results(runs) if any(run.tasks for run in runs) else []
        return f"---\n{header}---\n\n" + "\n\n".join(sections) + "\n"

    def _introduction(self) -> str:
        origin = f", trained from [{self.base_model}](https://huggingface.co/{self.base_model})"
        return (
            f"An encoder-decoder model of the T5 family{origin if self.base_model else ''}. Load "
            "it with `AutoModelForSeq2SeqLM` of transformers."
        )


def find_base_model(training_folder: str) -> str:
    """Returns the name on the hub of a run's initial checkpoint; "" if it is not from the hub.

    Args:
      training_folder: the model directory, or a checkpoint in it.

    Raises:
      UserError: the run's operative config cannot be read.
    """
    path = any_path(training_folder)
    for folder in (path, path.parent):
        config = folder / saved_config.FILE
        if config.is_file():
            with reading(str(config)):
                bindings = map(_INITIAL.match, read_lines(config))
                path_bytes = next((binding[1] for binding in bindings if binding), b"")
            return name_in_cache(path_bytes.decode(errors="replace"))
    return ""


def name_in_cache(path: str) -> str:
    """Returns the name of the model in a folder of the hub's cache; "" for any other path.

    >>> name_in_cache("/cache/models--google--flan-t5-xl/snapshots/7d6315"), name_in_cache("/m/t5")
    ('google/flan-t5-xl', '')
    """
    match = _CACHED.search(path)
    return f"{match[1]}/{match[2]}" if match else ""


def hub_name(dataset: str) -> str:
    """Returns the name on the hub of one of T0's datasets; "" for any other dataset.

    >>> hub_name("super_glue/rte"), hub_name("reviews")
    ('super_glue', '')
    """
    names = {row.name for row in datasets()}
    matches = [name for name in names if dataset == name or dataset.startswith(f"{name}/")]
    return max(matches, key=len, default="")


def read_results(paths: Sequence[Path], *, step: int | None) -> tuple[EvaluatedRun, ...]:
    """Reads the evaluations of one checkpoint.

    Args:
      paths: results files, or folders with such files.
      step: the checkpoint's step; None if it is unknown, so that all results count.

    Raises:
      UserError: a file is missing or malformed, or all results are for other steps.
    """
    runs = read_runs(paths) if paths else ()
    chosen = tuple(run for run in runs if step is None or run.step in (None, step))
    if runs and not chosen:
        steps = ", ".join(f"{run.step:,}" for run in runs)
        raise UserError(
            f"--results has results of step {steps}, but the checkpoint is of step {step:,}. "
            "Evaluate this checkpoint, or convert another one with --step"
        )
    return chosen


def list_results(runs: Sequence[EvaluatedRun]) -> list[dict[str, Any]]:
    """Returns the results of a model index, one for each dataset or decoded task of a run."""
    results = []
    for row in dataset_rows(runs, prompt_rows(runs)):
        metrics = [
            {
                "type": "accuracy",
                "value": round(row[statistic], 2),
                "name": f"Accuracy (%), ranked choices, {statistic} over {row['prompts']} prompts",
            }
            for statistic in ("mean", "median")
        ]
        results.append(_make_result(row["dataset"], row["title"], runs[row["run"]], metrics))
    for run in runs:
        for task in run.decoded:
            metrics = [
                {"type": printable(name), "value": round(value, 4)}
                for name, value in task.metrics.items()
                if value is not None
            ]
            if metrics:
                results.append(_make_result(task.name, task.name, run, metrics))
    return results


def _make_result(
    dataset: str, title: str, run: EvaluatedRun, metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    name = hub_name(dataset)
    subset = dataset[len(name) + 1 :] if name else ""
    split = run.facts.get("split")
    record = {"type": printable(name or dataset), "name": printable(title)}
    record |= {"config": printable(subset)} if subset else {}
    record |= {"split": printable(split)} if isinstance(split, str) else {}
    return {"task": dict(_TASK), "dataset": record, "metrics": metrics}


def _describe_prompts(prompts: Sequence[RecordedPrompt]) -> list[str]:
    """Returns the section with the prompts of the training run; [] without prompts."""
    if not prompts:
        return []
    sections = [
        "## Prompts",
        "The model was trained with these templates in Jinja. The text before `|||` is the input, "
        "and the text after it the target.",
    ]
    for prompt in prompts[:_MOST_PROMPTS]:
        sections.append(f"### {escape_markdown(printable(prompt.task))}")
        sections.append(f"Dataset: {escape_markdown(printable(prompt.dataset))}")
        sections.append(_fence(prompt.template.jinja))
        if prompt.template.answer_choices:
            sections += ["Answer choices:", _fence(prompt.template.answer_choices)]
    if len(prompts) > _MOST_PROMPTS:
        sections.append(f"{len(prompts) - _MOST_PROMPTS:,} more prompts are not shown.")
    return sections


def _fence(text: str) -> str:
    """Returns a block of code, with a fence that the text does not contain."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}jinja\n{printable(text)}\n{fence}"


def _describe_results(runs: Sequence[EvaluatedRun]) -> list[str]:
    lines = [
        "| Dataset | Split | Prompts | Examples | Mean | 95 % interval | Median |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in dataset_rows(runs, prompt_rows(runs)):
        split = runs[row["run"]].facts.get("split") or "–"
        cells = [
            *(escape_markdown(printable(str(text))) for text in (row["title"], split)),
            *(f"{row[key]:,}" for key in ("prompts", "most_examples")),
            *(f"{row['mean']:.1f}", interval(row) or "–", f"{row['median']:.1f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [
        "## Evaluation",
        "Accuracy (%) over prompts. The answer choice with the highest log-likelihood is the "
        "prediction. The interval of the mean is for other examples and prompts.",
        "\n".join(lines),
    ]
