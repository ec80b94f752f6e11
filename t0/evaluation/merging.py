"""`t0 merge`: merges shards into the files that an evaluation without shards writes.

    merge(["out"], "out")        # out/results_1000.json, out/scores/<task>_1000.jsonl, events

The command searches folders and their subfolders for shards. For each checkpoint, it must find
every shard of one run exactly once, and every shard must be finished. Lines are merged as a stream,
so memory does not grow with the examples' texts. The results file is written last.

The merged files equal, byte for byte, those of an evaluation without shards, except for the time
(`created`) and the paths in the results file. These come from the first shard. If a shard is found
twice, nothing is merged.
"""

import contextlib
import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.evaluation import results
from t0.evaluation.rank_metrics import AnswerCounts, RankClassification, RankMetrics
from t0.files import path_inside
from t0.files.any_path import any_path, read_lines
from t0.files.paths import read_bytes
from t0.files.untrusted import parsed_json
from t0.measures.choice_lengths import LENGTHS

_AGAIN = "Start the shard's command again"


@dataclasses.dataclass(frozen=True)
class _ShardScores:
    """The scores that one shard has for one checkpoint."""

    path: Path
    step: int
    number: int
    of: int
    run: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, Any]]

    def lines(self, kind: str, task: str) -> Path:
        return any_path(results.lines_path(str(self.path.parent), kind, task, self.step))


def merge(folders: Iterable[str], output: str) -> list[str]:
    """Merges the shards in folders and their subfolders.

    Args:
      folders: results folders of evaluations or of shards.
      output: the folder for the merged results, which may be one of `folders`.

    Returns:
      the paths of the results files.

    Raises:
      UserError: if there are no shards, if a shard is unfinished, missing, duplicated, damaged or
        from another run, or if the output cannot be written.
    """
    by_step: dict[int, list[_ShardScores]] = {}
    for shard in _find([any_path(folder) for folder in folders]):
        by_step.setdefault(shard.step, []).append(shard)
    for step in sorted(by_step):
        by_step[step].sort(key=lambda shard: shard.number)
        _check_whole(step, by_step[step])
    return [_merge_step(output, by_step[step]) for step in sorted(by_step)]


def _find(folders: Sequence[Path]) -> list[_ShardScores]:
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; expected one with a shard's results")
    shard_files = {
        path.resolve(): path for folder in folders for path in folder.rglob("shard_*.json")
    }
    if not shard_files:
        raise UserError(
            f"no finished shard below {', '.join(map(str, folders))}; expected folders of "
            "evaluations with --shard_id and --num_shards"
        )
    for path in shard_files.values():
        # Its scores may be newer than its last file.
        if any(path.parent.glob("unfinished_*")):
            raise UserError(f"{path.parent} is not finished. {_AGAIN}; it resumes")
    return [_read(path) for path in shard_files.values()]


def _read(path: Path) -> _ShardScores:
    try:
        content = parsed_json(read_bytes(path))
        if (content["schema"], content["kind"]) != (results.SHARD_SCHEMA, results.SHARD_KIND):
            raise UserError(f"{path} is not a shard's file as this version writes it")
        run, tasks = content["run"], content["tasks"]
        numbers = (run["step"], run["shard"]["id"], run["shard"]["of"])
        if not all(isinstance(number, int) for number in numbers) or not isinstance(tasks, dict):
            raise TypeError
        for task in tasks:
            path_inside(str(path.parent), f"{task}_{numbers[0]}.jsonl")
        return _ShardScores(path, *numbers, run, tasks)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read or is damaged. {_AGAIN}") from error


def _check_whole(step: int, shards: Sequence[_ShardScores]) -> None:
    first = shards[0]
    for shard in shards[1:]:
        facts, others = _facts_of_run(first), _facts_of_run(shard)
        if differing := [name for name in facts if facts[name] != others[name]]:
            raise UserError(
                f"{first.path.parent} and {shard.path.parent} are from different runs: they differ "
                f"in {', '.join(differing)}. Merge the shards of one run"
            )
    for previous, following in itertools.pairwise(shards):
        if previous.number == following.number:
            raise UserError(
                f"shard {previous.number} was found twice: {previous.path.parent} and "
                f"{following.path.parent}. Name only one of them"
            )
    missing = sorted({*range(first.of)} - {shard.number for shard in shards})
    if missing:
        raise UserError(
            f"step {step}: {len(missing)} of {first.of} shards are missing or not finished: "
            f"{', '.join(map(str, missing))}. Evaluate with --shard_id={missing[0]} "
            f"--num_shards={first.of} (this also resumes), and also name its folder"
        )


def _facts_of_run(shard: _ShardScores) -> dict[str, Any]:
    """Returns the facts that must be equal in all shards of a run.

    Paths are not among them, because they may differ between machines.
    """
    return {name: shard.run.get(name) for name in results.MADE_FROM if name != "shard"} | {
        "numbered_by": shard.run.get("numbered_by"),
        "number of shards": shard.of,
        "tasks": [*shard.tasks],
        "decoded answers": ["decoded" in entry for entry in shard.tasks.values()],
    }


def _merge_step(output: str, shards: Sequence[_ShardScores]) -> str:
    first = shards[0]
    entries = {task: _merge_task(output, shards, task) for task in first.tasks}
    run = {name: value for name, value in first.run.items() if name not in ("shard", "batches")}
    results.write_events(output, first.step, entries, kind="ranked")
    return results.write_results(output, first.step, run, entries)


def _merge_task(output: str, shards: Sequence[_ShardScores], task: str) -> dict[str, Any]:
    facts = shards[0].tasks[task]
    try:
        metrics = RankMetrics(RankClassification(classes) for classes in facts["classes"])
        rows = 0

        def count_lines() -> Iterator[Mapping[str, Any]]:
            nonlocal rows
            for line in _join_lines(shards, task):
                rows += 1
                if line["gold"] >= 0:
                    _count(metrics, line)
                yield line

        path = results.lines_path(output, "scores", task, shards[0].step)
        results.write_lines(path, count_lines())
        if rows != facts["rows"]:
            raise ValueError(f"{rows:,} of {facts['rows']:,} examples were found")
        entry = results.task_entry(facts, metrics, task)
        if "decoded" in facts:
            entry["decoded"] = _merge_answers(output, shards, task, metrics.examples)
        return entry
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"task {task}: the scores of the shards {shards[0].path.parent} ... are damaged "
            f"({error}). Evaluate them again"
        ) from error


def _merge_answers(
    output: str, shards: Sequence[_ShardScores], task: str, examples: int
) -> dict[str, Any]:
    counts = AnswerCounts(shards[0].tasks[task]["decoded"]["most_tokens"])
    path = results.lines_path(output, "answers", task, shards[0].step)
    with _merge_lines(shard.lines("answers", task) for shard in shards) as lines:
        results.write_lines(path, counts.count_lines(lines))
    entry = counts.entry()
    if entry["examples"] != examples:
        raise ValueError(f"{entry['examples']:,} of {examples:,} decoded answers were found")
    return entry


def _count(metrics: RankMetrics, line: Mapping[str, Any]) -> None:
    row = np.array([choice["log_likelihood"] for choice in line["choices"]], np.float32)
    lengths = {name: [choice[name] for choice in line["choices"]] for name in LENGTHS}
    metrics.count(line["gold"], row, lengths)


def _join_lines(shards: Sequence[_ShardScores], task: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each example in row order, joined from the lines of several shards."""
    with _merge_lines(shard.lines("scores", task) for shard in shards) as merged:
        for idx, lines in itertools.groupby(merged, key=lambda line: line["idx"]):
            yield _join_choices(idx, list(lines))


@contextlib.contextmanager
def _merge_lines(paths: Iterable[Path]) -> Iterator[Iterator[dict[str, Any]]]:
    """Yields an iterator over the lines of several files, merged by row."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(read_lines(path))) for path in paths]
        streams = [map(parsed_json, file) for file in files]
        yield heapq.merge(*streams, key=lambda line: line["idx"])


def _join_choices(idx: int, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    line = lines[0]
    for number, choice in enumerate(line["choices"]):
        log_likelihoods = [shard_line["choices"][number]["log_likelihood"] for shard_line in lines]
        values = [value for value in log_likelihoods if value is not None]
        if len(values) != 1:
            raise ValueError(f"example {idx}, choice {number}: {len(values)} scores instead of one")
        choice["log_likelihood"] = values[0]
    scores = [choice["log_likelihood"] for choice in line["choices"]]
    return {**line, "prediction": int(np.argmax(scores))}
