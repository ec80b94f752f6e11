"""Whole rank evaluations by a scorer and a decoder without a model, on made-up records."""

from unittest import mock

import numpy as np
import pytest

from t0.evaluation import ranking, results
from t0.evaluation.batching import BatchLimits, SortedPlan
from t0.evaluation.rank_metrics import RankClassification
from t0.evaluation.ranked_examples import RankTaskFacts
from t0.evaluation.ranking import RankEvaluationSettings
from t0.evaluation.records import TaskRecords, record_of

TASKS = {"first": (11, 2), "second": (30, 3), "third": (7, None)}
STEPS = (7, 9)


class Scorer:
    """Scores without a model; a choice's score depends on the batch in which it is."""

    replicas = 1
    device_kind = "cpu"

    def __init__(self):
        self.batches = 0

    def restore(self, checkpoint):
        self.step = int(checkpoint)
        return 1

    def close(self):
        pass

    def plan(self, tasks, limits, **options):
        return SortedPlan(limits)

    def score(self, batch):
        inputs, targets = batch.lay_out()
        self.batches += 1
        noise = np.float32(inputs.sum() % 101) / 1000 * self.step
        return -noise - (targets.sum(-1) % 7).astype(np.float32) / 3


def records(name):
    examples, choices = TASKS[name]
    rng = np.random.default_rng(examples)
    for idx in range(examples):
        count = choices or 2 + idx % 2
        # Of the third task every choice has an input of its own, which may be in another batch.
        shared = rng.integers(3, 90, rng.choice([4, 9]))
        for choice in range(count):
            yield {
                "idx": (idx, choice),
                "inputs": shared if choices else rng.integers(3, 90, rng.choice([4, 9])),
                "targets": np.append(rng.integers(3, 90, 2), 1),
                "is_correct": choice == idx % 2 and idx != 3,
                "inputs_pretokenized": f"Input {idx}\u2028 «é»",
                "targets_pretokenized": "yes" * choice,
            }


def ranked(name, metric):
    classes = TASKS[name][1]
    facts = RankTaskFacts(name, f"data/{name}", "", [metric or RankClassification(classes)])
    return facts, lambda by_row: TaskRecords(map(record_of, records(name)))


class Decoder:
    """Writes an answer that depends on the input alone."""

    def __init__(self):
        self.decoded = 0

    def restore(self, checkpoint):
        self.step = int(checkpoint)
        return 1

    def decode(self, inputs, most_tokens):
        self.decoded += len(inputs)
        texts = ["Yes" * ((int(one.sum()) + self.step) % 4) for one in inputs]
        return [text and f" {text} ." for text in texts]


def evaluate(folder, shard=0, shards=1, *, tasks=tuple(TASKS), decoder=None, metric=None, **facts):
    """Evaluates, and returns the number of batches that were scored."""
    scorer = Scorer()
    ranking.rank(
        [{"step": step, "checkpoint": str(step), "created": "then", **facts} for step in STEPS],
        str(folder),
        {name: ranked(name, metric) for name in tasks},
        lengths=None,
        open_model=lambda *_, **__: scorer,
        limits=lambda _: BatchLimits(tokens=80, target_tokens=80),
        settings=RankEvaluationSettings(
            shard_id=shard, num_shards=shards, decode_answers=decoder is not None
        ),
        make_decoder=lambda: decoder,
    )
    return scorer.batches


def contents(folder):
    """The files for readers, by their names; of event files only the names, without times."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.json*")}
    events = sorted(path.name.split(".")[-2:] for path in folder.glob("events.*"))
    return {name: text for name, text in found.items() if "shard" not in name}, events


def interrupted_at_write(number, folder, *args, **kwargs):
    """Evaluates, with an interrupt in the place of a file's writing (the first is 1)."""
    write_whole, begun = results.write_whole, []

    def interrupted(path, lines):
        begun.append(path)
        if len(begun) == number:
            raise KeyboardInterrupt
        write_whole(path, lines)

    with mock.patch.object(results, "write_whole", interrupted), pytest.raises(KeyboardInterrupt):
        evaluate(folder, *args, **kwargs)
