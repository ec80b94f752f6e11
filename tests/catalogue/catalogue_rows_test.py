"""Rows of T0's datasets through all of its tasks: rendered, postprocessed and judged.

Made-up rows of every dataset, after its recorded columns, and the first real ones of each split
of the copies of the data beside the checkout, or of the samples in `tests/fixtures/data`.
"""

import collections
import functools
import itertools
import math

import pytest
from rouge_score import scoring as rouge_scoring

from t0.catalogue.entries import catalogue_entries, datasets
from t0.errors import UserError
from t0.prompts import CompiledTemplate
from t0.sources import features
from tests.helpers.real_rows import ROWS

# A handful of rows may lack a class, or all have one.
pytestmark = pytest.mark.filterwarnings(
    "ignore::scipy.stats.ConstantInputWarning",
    "ignore::sklearn.exceptions.UndefinedMetricWarning",
    "ignore:No positive class found:UserWarning",
)

ROWS_OF_A_SPLIT = 20
JUDGED_OF_A_SPLIT = 4
TABLE = [(row.name, row.subset) for row in datasets() if row.name != "jigsaw_toxicity_pred"]
WITH_ROWS = [(name, sub) for name, sub in TABLE if (ROWS / name / (sub or "default")).is_dir()]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """ROUGE draws its interval a thousand times, for a tenth of a second."""
    few = functools.partial(rouge_scoring.BootstrapAggregator, n_samples=5)
    monkeypatch.setattr(rouge_scoring, "BootstrapAggregator", few)


def entries_of(dataset, subset):
    return [e for e in catalogue_entries() if (e.task.dataset, e.task.subset) == (dataset, subset)]


def tasks_of(entry):
    """Returns the plain task and the one for rank evaluation or None."""
    import seqio

    name = entry.task.name
    scored = name + "_score_eval"
    registered = seqio.TaskRegistry.names()
    return seqio.TaskRegistry.get(name), scored in registered and seqio.TaskRegistry.get(scored)


def judge(task, texts, before):
    """Runs a task's metrics on targets that were all predicted, and on none that was.

    Of a dataset's prompts with metrics that take long, two are enough; `before` counts them.
    """
    slow = {metric.__name__ for metric in task.metric_fns} & {"rouge", "bleu"}
    before.update(slow)
    if any(before[name] > 2 for name in slow):
        return

    def post(text, is_target):
        return task.postprocess_fn(text, example={"targets": text}, is_target=is_target)

    targets = [post(text, True) for text in texts]
    for metric in task.metric_fns:
        results = metric(targets, [post(f" {text} ", False) for text in texts])
        for name in {"accuracy", "em", "f1"} & results.keys():
            if name != "f1" or "em" in results:
                assert results[name] == 100, (task.name, name)
        worst = metric(targets, [post("no such answer", False) for _ in texts])
        assert worst.keys() == results.keys(), task.name
        assert all(isinstance(float(value), float) for value in worst.values()), task.name


def made_up(kind, number):
    """Returns a value of a column's recorded type."""
    if isinstance(kind, list):
        return [made_up(kind[0], i) for i in range(4)]
    if "_type" not in kind:
        return {name: made_up(inner, number) for name, inner in kind.items()}
    if kind["_type"] == "ClassLabel":
        return number % len(kind["names"])
    if kind["_type"] == "Sequence":
        inner = kind["feature"]
        length = max(kind.get("length", 0), 0) or 4
        if "_type" in inner:
            return [made_up(inner, i) for i in range(length)]
        return {name: [made_up(one, i) for i in range(length)] for name, one in inner.items()}
    makers = {"string": lambda: f"word {number}", "bool": lambda: number % 2 == 1}
    if kind["dtype"].startswith("float"):
        return float(number % 5)
    return makers.get(kind["dtype"], lambda: number % 4)()


def made_up_targets(entry):
    """Yields what the template makes of made-up rows, where it makes something."""
    prompt = CompiledTemplate(entry.task.template, entry.task.name)
    columns = features(entry.task.dataset, entry.task.subset)
    for number in range(4):
        row = {name: made_up(kind, number) for name, kind in columns.items()}
        try:
            example = prompt.example(row, number)
        except UserError:
            continue  # it looks up a text of the row in another column
        if example:
            yield example.targets


@pytest.mark.parametrize(("dataset", "subset"), TABLE)
def test_catalogue_metrics_accept_rendered_targets(catalogue, dataset, subset):
    entries = entries_of(dataset, subset)
    assert entries
    before = collections.Counter()
    for entry in entries:
        # Some prompts are for some rows only (copa's, by the kind of question).
        judge(tasks_of(entry)[0], list(made_up_targets(entry)) or ["some", "words"], before)


@pytest.mark.parametrize(("dataset", "subset"), WITH_ROWS)
def test_catalogue_tasks_render_real_rows(catalogue, dataset, subset, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(ROWS))
    here = {p.name.partition(".")[0] for p in (ROWS / dataset / (subset or "default")).iterdir()}
    seen, before = set(), collections.Counter()
    for entry in entries_of(dataset, subset):
        plain, scored = tasks_of(entry)
        splits = [own for own, theirs in entry.task.split_mapping.items() if theirs in here]
        seen.update(entry.task.split_mapping[split] for split in splits)
        targets = []
        for split in splits:
            records = list(itertools.islice(plain.source.records(split), ROWS_OF_A_SPLIT))
            assert all(record["inputs"] and record["targets"] for record in records), plain.name
            targets += [record["targets"] for record in records[:JUDGED_OF_A_SPLIT]]
            if scored:
                check_scored(scored, split, records)
        judge(plain, targets or ["some", "words"], before)
    assert seen == here


def check_scored(scored, split, records):
    """Compares a rank-evaluation task with the plain records, and judges made-up scores."""
    found = list(itertools.islice(scored.source.records(split), ROWS_OF_A_SPLIT))
    assert len(found) == len(records)
    for mine, plain in zip(found, records, strict=True):
        assert mine["inputs"] == plain["inputs"], scored.name
        assert mine["answer_choices"] == plain["answer_choices"], scored.name
        assert all(isinstance(choice, str) for choice in mine["answer_choices"])
        assert mine["targets"] in (plain["targets"], "<NO LABEL>")
    hidden = scored.source.reports[split].counts["hidden label"]
    assert hidden in (0, len(found))  # labels are withheld of whole splits
    choices = [(row, n) for row, r in enumerate(found) for n in range(len(r["answer_choices"]))]
    correct = [found[row]["answer_choices"][n] == found[row]["targets"] for row, n in choices]
    assert not (hidden and any(correct)), scored.name
    judged = [(list(i), c, 1.0, 1) for i, c in zip(choices, correct, strict=True)]
    if not judged:
        return
    (metric,) = scored.metric_fns
    accuracy = metric(judged, [0.0 if c else -1.0 for c in correct])["accuracy"]
    answered = len({row for (row, _), c in zip(choices, correct, strict=True) if c})
    assert math.isclose(accuracy, 100 * answered / len(found)), scored.name
