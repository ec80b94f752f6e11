"""What a run is told of the recipes' data before it starts."""

import pytest

from t0.errors import UserError
from t0.feeding import data_spec
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


def told(name):
    return list(data_spec.notes(name, "train"))


def test_opening_notes_of_a_mixture():
    assert told("other") == []
    assert told("all") == ["plain says so", "several says so", "without_eos says so"]


def test_opening_notes_of_unknown_mixture_are_refused():
    with pytest.raises(UserError, match="unknown mixture or task 'plane'"):
        told("plane")
