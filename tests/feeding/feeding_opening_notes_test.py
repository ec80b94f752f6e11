"""What a run is told of the recipes' data before it starts."""

import pytest

from t0.errors import UserError
from t0.feeding import opening
from t0.tasks.recipe_tasks import TEXT, TEXTS, RecordSource

import seqio  # isort: skip (after t0.feeding, which mends what seqio imports)


def add(name, records, signature, *, eos=True):
    """Registers a task of bytes."""
    source = RecordSource(
        read=lambda split: records,
        count=lambda split: len(records),
        splits=["train"],
        signature=signature,
        notes=lambda split: [f"{name} says so"],
    )
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=eos)
    features = {"inputs": feature, "targets": feature}
    seqio.TaskRegistry.add(name, source, output_features=features, preprocessors=[])


@pytest.fixture(autouse=True)
def tasks(clean_registries):
    """Tasks with one target and with a choice of outputs, a task of another kind, a mixture."""
    plain = [{"inputs": "", "targets": "x" * length} for length in (2, 3, 4)]
    add("plain", plain, {"inputs": TEXT, "targets": TEXT})
    several = [{"outputs": ["x", "xxx"]}, {"outputs": ["x", "x"]}]
    add("several", several, {"outputs": TEXTS})
    add("without_eos", plain, {"inputs": TEXT, "targets": TEXT}, eos=False)
    other = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    seqio.TaskRegistry.add("other", other, output_features={}, preprocessors=[])
    names = ("plain", "several", "without_eos")
    seqio.MixtureRegistry.add("all", [(name, 1) for name in names])


def told(name, **lengths):
    return list(opening.notes(name, "train", lengths or None))


def test_truncation_note_counts_long_targets_with_eos():
    assert told("plain", inputs=1, targets=4) == [
        "plain says so",
        "plain, train: 1 of 3 targets are longer than 4 tokens and will be cut",
    ]
    assert "2 of 3" in told("plain", targets=3)[1]
    assert "1 of 3" in told("without_eos", targets=3)[1]
    # Any of the outputs may be drawn.
    assert "1 of 2" in told("several", targets=3)[1]


def test_truncation_note_measures_only_if_needed():
    assert told("plain", targets=5) == told("plain") == told("plain", inputs=1) == ["plain says so"]
    assert told("other", targets=1) == []
    assert list(opening.notes("plain", "test", {"targets": 1})) == []


def test_truncation_note_measures_only_first_records(monkeypatch):
    monkeypatch.setattr(opening, "MEASURED", 2)
    assert "2 of 2" in told("plain", targets=1)[1]


def test_opening_notes_of_a_mixture():
    lines = told("all", targets=3)
    assert len(lines) == 6
    assert lines[::2] == ["plain says so", "several says so", "without_eos says so"]


def test_opening_notes_of_unknown_mixture_are_refused():
    with pytest.raises(UserError, match="unknown mixture or task 'plane'"):
        told("plane")
