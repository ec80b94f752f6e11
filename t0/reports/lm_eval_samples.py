"""Reads results and `--log_samples` files of lm-evaluation-harness for tasks exported by t0.

    results_2026-11-23T01-48-10.713242.json
    samples_super_glue_rte_score_eval_2026-11-23T01-48-10.713242.jsonl

    path = Path("results_2026-11-23T01-48-10.713242.json")
    results = read_harness(load_results(path), path)
    prompt, scores = results.tasks["super_glue_rte_GPT_3_style_score_eval"]
    >>> cautions({"transformers_version": "4.57.6"})
    []

A line of a samples file contains, among other fields:

    {"doc": {"idx": 0, "dataset": "super_glue/rte", "prompt": "GPT-3 style", "task": "super_...",
             "inputs": "...", "choices": ["True", "False"], "gold": 1, ...},
     "arguments": {"gen_args_0": {"arg_0": "...", "arg_1": " True</s>"}, ...},
     "filtered_resps": [["-1.25", "False"], ["-2.5", "False"]], "filter": "none", ...}

Assumptions: the harness has version 0.4, which writes log-likelihoods in nats, as texts, in the
order of the choices. The `doc` of each sample comes from `t0 export-eval`, so it names the prompt
and the row. Samples without such a `doc` belong to a task that t0 did not export. They cannot be
assigned to a prompt.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.measures.choice_lengths import WITH_EOS, WITHOUT_EOS
from t0.reports.example_scores import ExampleScores, ScoreColumns
from t0.reports.result_files import field, finite, read_json_lines

_ROW = ("idx", "dataset", "prompt", "task", "inputs", "choices", "gold")
_EXPORT = "`t0 export-eval TASKS --to lm-eval --output DIR` and `lm_eval run --include_path DIR`"
# Since version 5 of transformers, T5's classes declare that the output matrix is tied to the
# embedding. The harness ties weights after it has loaded a model, and so overwrites an output
# matrix that is not tied.
_TYING = 5


class OtherTask(UserError):
    """The samples belong to a task that `t0 export-eval` did not write."""


# The task, the dataset and the name of an exported prompt that the harness evaluated.
HarnessPrompt = tuple[str, str, str]


@dataclass(frozen=True)
class HarnessResults:
    """The results of a run of the harness.

    Attributes:
      tasks: our name of a task -> its prompt and scores.
      skipped: the names of the harness's tasks that `t0 export-eval` did not write.
      facts: the settings, under the names in our own results files.
      notes: warnings.
    """

    tasks: Mapping[str, tuple[HarnessPrompt, ExampleScores]]
    skipped: tuple[str, ...]
    facts: Mapping[str, Any]
    notes: Sequence[str]


def read_harness(content: Mapping[str, Any], path: Path) -> HarnessResults:
    """Reads the samples of all tasks of a results file of the harness.

    Args:
      content: the results file's content.
      path: the results file, next to which the files of samples are.

    Raises:
      UserError: if a file of samples cannot be read or is malformed, or `t0 export-eval` wrote no
        task of the run.
    """
    tasks: dict[str, tuple[HarnessPrompt, ExampleScores]] = {}
    tasks_read: list[str] = []
    skipped: dict[str, UserError] = {}
    with_eos: set[bool] = set()
    for name, file in _sample_files(content, path).items():
        try:
            prompts, count, eos = _read_samples(file, name)
        except OtherTask as error:
            skipped[name] = error
            continue
        _check_count(content, name, count, file)
        tasks_read.append(name)
        with_eos |= eos
        # A prompt may have been evaluated twice: in the task of its dataset, and as its own task.
        # Both give the same scores.
        tasks |= {prompt[0]: (prompt, scores) for prompt, scores in prompts.items()}
    if not tasks and skipped:
        raise next(iter(skipped.values()))
    facts = _read_facts(content, path, tasks_read, with_eos)
    return HarnessResults(tasks, tuple(skipped), facts, cautions(content))


def _read_samples(
    path: Path, task: str
) -> tuple[dict[HarnessPrompt, ExampleScores], int, set[bool]]:
    """Reads a samples file.

    Returns:
      (prompt -> its scores, in the order of the file; the number of samples; {True} if the choices
      were scored with EOS, {False} if they were scored without it, and both values if samples
      differ).
    """
    columns_by_prompt: dict[HarnessPrompt, ScoreColumns] = {}
    with_eos, lines = set(), 0
    for where, sample in read_json_lines(path):
        prompt, record, eos = _exported_sample(sample, where, task)
        columns = columns_by_prompt.get(prompt) or ScoreColumns()
        if columns.add(record, where):
            columns_by_prompt[prompt] = columns
        with_eos.add(eos)
        lines += 1
    scores = {
        prompt: columns.scores(path, lines=functools.partial(_read_records, task=prompt[0]))
        for prompt, columns in columns_by_prompt.items()
    }
    return scores, lines, with_eos


def _read_records(path: Path, task: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the file and line, and the record, of each sample of one of our tasks."""
    for where, sample in read_json_lines(path):
        prompt, record, _ = _exported_sample(sample, where, path.stem)
        if prompt[0] == task:
            yield where, record


def _sample_files(content: Mapping[str, Any], path: Path) -> dict[str, Path]:
    """Returns task -> its samples file, for the tasks of the harness that have such a file.

    Raises:
      UserError: if no task has a samples file.
    """
    date = path.stem.removeprefix("results_")
    names = [name for name in content["configs"] if "/" not in name]
    files = {name: path.parent / f"samples_{name}_{date}.jsonl" for name in names}
    existing = {name: file for name, file in files.items() if file.is_file()}
    if not existing:
        expected = path.parent / f"samples_<task>_{date}.jsonl"
        raise UserError(
            f"{path} of lm-evaluation-harness has no samples: expected {expected} for one of its "
            f"{len(names)} tasks. Run lm_eval again with --log_samples, or copy these files there."
        )
    return existing


def _read_facts(
    content: Mapping[str, Any], path: Path, tasks: Collection[str], with_eos: Collection[bool]
) -> dict[str, Any]:
    """Returns the settings of a run of the harness, under the names in our own results files.

    Args:
      content: the results file's content.
      path: the results file.
      tasks: the tasks of the harness whose samples were read.
      with_eos: [True] if the choices of these tasks were scored with EOS, [False] if they were
        scored without it, and both values if tasks differ.
    """
    config = field(content, "config", Mapping[str, Any], path, default={})
    arguments = config.get("model_args")
    if isinstance(arguments, dict):
        arguments = ",".join(f"{name}={value}" for name, value in arguments.items())
    version = content.get("lm_eval_version")
    settings = {
        "engine": f"lm-evaluation-harness {version}" if version else None,
        "model": config.get("model"),
        "model_args": arguments,
        "model_dir": content.get("model_name"),
        "dtype": str(config.get("model_dtype") or "").removeprefix("torch.") or None,
        "split": _find_split(content, tasks),
        "normalisation": {(True,): WITH_EOS, (False,): WITHOUT_EOS}.get(tuple(with_eos)),
        "transformers": content.get("transformers_version"),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _find_split(content: Mapping[str, Any], tasks: Collection[str]) -> str | None:
    keys = ("test_split", "validation_split", "training_split")
    configs = [content["configs"].get(task) for task in tasks]
    configs = [config for config in configs if isinstance(config, dict)]
    splits = {next((config[key] for key in keys if config.get(key)), None) for config in configs}
    split = splits.pop() if len(splits) == 1 else None
    return split if isinstance(split, str) else None


def cautions(content: Mapping[str, Any]) -> list[str]:
    """Returns warnings about results of the harness, such as a version that gives wrong scores."""
    release = re.match(r"\d+", str(content.get("transformers_version", "")))
    if release is None or int(release[0]) < _TYING:
        return []
    return [
        f"lm-evaluation-harness ran with transformers {content['transformers_version']}. If a "
        "T5's output matrix is not its embedding (T5 1.1, mT5, T0), it scored the wrong model, "
        "with the embedding as output matrix. Such models need transformers 4."
    ]


def _exported_sample(
    record: Mapping[str, Any], where: str, task: str
) -> tuple[HarnessPrompt, dict[str, Any], bool]:
    """Converts a sample of the harness to the format of our scores.

    Args:
      record: a sample of an exported task.
      where: file and line, for messages.
      task: the harness's task, for messages.

    Returns:
      (prompt of the sample, its record in the format of our scores, whether EOS was scored).

    Raises:
      OtherTask: if the sample's `doc` does not come from `t0 export-eval`.
      UserError: if the sample is malformed, or a choice has no log-likelihood.
    """
    doc = field(record, "doc", Mapping[str, Any], where)
    if any(doc.get(key) is None for key in _ROW):
        raise OtherTask(
            f"{where}: t0 did not export task '{task}' of lm-evaluation-harness. Its rows have "
            f"{', '.join(map(str, doc))[:120] or 'no fields'}; expected {', '.join(_ROW)}. "
            f"Evaluate with {_EXPORT}."
        )
    name, dataset, prompt = (field(doc, key, str, where) for key in ("task", "dataset", "prompt"))
    texts = field(doc, "choices", Sequence[str], where)
    values = _read_likelihoods(record, len(texts), where)
    choices = [
        {"text": text, "log_likelihood": value} for text, value in zip(texts, values, strict=True)
    ]
    line = {key: doc[key] for key in ("idx", "inputs", "gold")} | {"choices": choices}
    line["numbered_by"] = doc.get("numbered_by")
    line["prediction"] = values.index(max(values)) if values else None
    return (name, dataset, prompt), line, doc.get("continuations") != [*texts]


def _read_likelihoods(record: Mapping[str, Any], count: int, where: str) -> list[float]:
    try:
        pairs = [pair for pair in record["filtered_resps"] if isinstance(pair, list)]
        values = [finite(float(pair[0])) for pair in pairs]
    except (KeyError, IndexError, TypeError, ValueError):
        values = []
    if len(values) != count or None in values:
        raise UserError(
            f"{where}: 'filtered_resps' must have a log-likelihood for each of the {count} "
            f"choices, got {record.get('filtered_resps')!r:.80}. Run lm_eval again on the exported "
            "tasks (output_type: multiple_choice), with a model that scores text."
        )
    return values


def _check_count(content: Mapping[str, Any], task: str, lines: int, file: Path) -> None:
    """Checks that a samples file has as many samples as the harness evaluated.

    Raises:
      UserError: if the file has more or fewer samples.
    """
    counts = field(content, "n-samples", Mapping[str, Any], file, default={})
    effective = field(counts, task, Mapping[str, Any], file, default={}).get("effective", lines)
    if effective != lines:
        raise UserError(
            f"{file} has {lines:,} samples, but lm-evaluation-harness evaluated {effective}. The "
            "file is incomplete, or from another run. Copy it again, or run lm_eval again."
        )
