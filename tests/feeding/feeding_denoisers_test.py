"""UL2's denoisers: T5's own preprocessors with the paper's settings, after a mode token."""

import dataclasses
import functools
import itertools

import gin
import numpy as np
import pytest
import seqio
from t5.data import preprocessors as t5_preprocessors

from t0.errors import UserError
from t0.feeding import data_spec, objectives, pretraining
from t0.feeding.token_files import Ragged
from t0.sources.texts import FolderTexts
from t0.tasks.denoisers import UL2, denoiser_definitions, denoiser_mixtures
from tests.feeding.tiny_texts import documents, examples_of_t5, restored, write_documents

import tensorflow.compat.v1 as tf  # isort: skip

# The paper's Table 1: mode, mean span, density, share.
PAPER = {
    "r1": ("R", 3, 0.15, 0.2),
    "r2": ("R", 8, 0.15, 0.2),
    "x1": ("X", 3, 0.5, 0.1),
    "x2": ("X", 8, 0.5, 0.1),
    "x3": ("X", 64, 0.15, 0.1),
    "x4": ("X", 64, 0.5, 0.1),
    "s": ("S", None, None, 0.2),
}
SPANS = [name for name in PAPER if name != "s"]
LENGTHS = {"inputs": 220, "targets": 256}
TOP = 358


@pytest.fixture(autouse=True)
def _no_gin():
    yield
    gin.clear_config()


@pytest.fixture
def tasks(tmp_path, clean_registries):
    """Registers text_ul2_* and text_ul2 over some documents, with a vocabulary of bytes."""
    write_documents(tmp_path / "train.txt", documents(300))
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100), add_eos=True)
    definitions = denoiser_definitions("text", FolderTexts(tmp_path))
    for name, arguments in definitions.items():
        features = dict.fromkeys(("inputs", "targets"), feature)
        seqio.TaskRegistry.add(name, **arguments | {"output_features": features})
    for name, members in denoiser_mixtures(definitions).items():
        seqio.MixtureRegistry.add(name, members)
    return {name: seqio.TaskRegistry.get(f"text_ul2_{name}") for name in UL2}


def mode_of(name):
    return [ord(character) + 3 for character in f"[{PAPER[name][0]}]"]


def step_of_t5(name):
    _, mean_span, density, _ = PAPER[name]
    if mean_span is None:
        return t5_preprocessors.prefix_lm
    return functools.partial(
        t5_preprocessors.span_corruption, mean_noise_span_length=mean_span, noise_density=density
    )


def ragged(sequences):
    values = np.concatenate([np.zeros(0, np.int32), *(np.array(s, np.int32) for s in sequences)])
    return Ragged(values, np.cumsum([0, *map(len, sequences)]))


def listed(sequences):
    return [sequences.values[a:b].tolist() for a, b in itertools.pairwise(sequences.ends.tolist())]


@pytest.mark.parametrize(
    "name", [n if n in ("r1", "s") else pytest.param(n, marks=pytest.mark.slow) for n in PAPER]
)
def test_denoiser_equals_t5_after_mode_token(tasks, name):
    rng = np.random.default_rng(4)
    sequences = [rng.integers(3, 250, size).astype(np.int32) for size in rng.integers(1, 90, 130)]
    append_eos = seqio.preprocessors.append_eos_after_trim
    mode = mode_of(name)
    shorter = {**LENGTHS, "inputs": LENGTHS["inputs"] - len(mode)}
    features = tasks[name].output_features
    theirs = examples_of_t5([step_of_t5(name), append_eos], sequences, shorter, features)
    objective = objectives.objective_of(tasks[name], LENGTHS)
    assert list(objective.mode) == mode
    # The task's own SeqIO steps, with the same seed, give the same tokens after the mode token.
    steps = tasks[name].preprocessors[-2:]
    stock = examples_of_t5(steps, sequences, LENGTHS, features)
    for ours, example in zip(stock, theirs, strict=True):
        assert ours["inputs"].tolist() == mode + example["inputs"].tolist()
        assert ours["targets"].tolist() == example["targets"].tolist()
    made = pretraining.examples(objective, LENGTHS, ragged(sequences), np.random.default_rng(0))
    assert {tuple(inputs[: len(mode)]) for inputs in listed(made["inputs"])} == {tuple(mode)}
    assert max(made["inputs"].lengths) <= LENGTHS["inputs"]
    assert len(made["inputs"].lengths) == len(theirs)
    if name == "s":
        return
    for feature, extra in (("inputs", len(mode)), ("targets", 0)):
        sizes = [len(example[feature]) + extra for example in theirs]
        assert made[feature].lengths.tolist() == sizes
    # With the masks that T5 drew, every token is the same.
    back = [restored(example["inputs"], example["targets"], TOP) for example in theirs]
    pieces, mask = ragged([tokens for tokens, _ in back]), np.concatenate([m for _, m in back])
    inputs = pretraining.prepend(pretraining.with_sentinels(pieces, mask, TOP), mode)
    assert listed(pretraining.append_eos(inputs, 1, LENGTHS["inputs"])) == [
        mode + example["inputs"].tolist() for example in theirs
    ]


@pytest.mark.parametrize("name", SPANS)
def test_denoiser_masks_have_noise_and_span_counts_of_t5(name):
    _, mean_span, density, _ = PAPER[name]
    lengths = [2, 9, 50, 127, 566]
    with tf.Graph().as_default(), tf.Session() as session:
        masks = [
            t5_preprocessors.random_spans_noise_mask(n, density, [(7, 1), (7, 2)], mean_span)
            for n in lengths
        ]
        theirs = session.run(masks)
    for length, mask in zip(lengths, theirs, strict=True):
        ours = pretraining.span_mask(
            np.array([length]), np.random.default_rng(7), density=density, mean_span=mean_span
        )
        assert ours.sum() == mask.sum()
        assert np.diff(ours.astype(int)).clip(0).sum() == np.diff(mask.astype(int)).clip(0).sum()


def test_ul2_table_is_that_of_the_paper():
    assert {name: dataclasses.astuple(UL2[name]) for name in SPANS} == {n: PAPER[n] for n in SPANS}


def test_ul2_mixture_has_the_shares_of_the_paper(tasks):
    mixture = seqio.MixtureRegistry.get("text_ul2")
    rates = {name: mixture.get_rate(task) for name, task in tasks.items()}
    assert rates == {name: row[-1] for name, row in PAPER.items()}
    data = data_spec.open_data(data_spec.data_spec("text_ul2", LENGTHS, seed=3, pack=False))
    batches = data.batches(16)
    rows = [tuple(row[:3]) for _ in range(30) for row in next(batches)[0]["inputs"].tolist()]
    counts = {name: rows.count(tuple(mode_of(name))) / len(rows) for name in ("r1", "x1", "s")}
    assert counts == {n: pytest.approx(share, abs=0.08) for n, share in zip(
        counts, (0.4, 0.4, 0.2), strict=True)}  # fmt: skip


def test_ul2_start_notes_say_how_long_mode_tokens_are(tasks):
    assert list(data_spec.notes("text_ul2", "train")) == [
        f"UL2's mode token [{mode}] is 3 tokens of the vocabulary" for mode in "RSX"
    ]
    gin.bind_parameter("ul2.modes", "none")
    assert list(data_spec.notes("text_ul2", "train")) == []
    assert objectives.objective_of(tasks["r1"], LENGTHS).mode == ()


def test_ul2_modes_of_the_released_model(tasks):
    gin.bind_parameter("ul2.modes", "released")
    vocabulary = seqio.ByteVocabulary()
    modes = {n: objectives.objective_of(tasks[n], LENGTHS).mode for n in ("r1", "x4", "s")}
    texts = {name: vocabulary.decode(list(ids)) for name, ids in modes.items()}
    assert texts == {"r1": "[NLU]", "x4": "[NLG]", "s": "[S2S]"}


def test_ul2_table_of_ones_own(tasks):
    gin.bind_parameter("ul2.denoisers", {"r1": ("X", 5, 0.25, 3), "s": ("S", None, 0.5, 1.0)})
    mixture = seqio.MixtureRegistry.get("text_ul2")
    rates = {name: mixture.get_rate(task) for name, task in tasks.items()}
    assert rates == dict.fromkeys(PAPER, 0.0) | {"r1": 3.0, "s": 1.0}
    objective = objectives.objective_of(tasks["r1"], LENGTHS)
    assert objective.parameters == {"noise_density": 0.25, "mean_noise_span_length": 5.0}
    assert list(objective.mode) == mode_of("x1")
    data = data_spec.open_data(data_spec.data_spec("text_ul2", LENGTHS, seed=3))
    next(data.batches(16))
    served = {share.name: share.served for share in data.shares() if share.served}
    assert set(served) == {"text_ul2_r1", "text_ul2_s"}


@pytest.mark.parametrize(
    ("parameter", "value", "told"),
    [
        ("denoisers", {"r9": ("R", 3, 0.15, 1)}, "unknown denoiser 'r9'. Did you mean 'r"),
        ("denoisers", {"r1": ("Q", 3, 0.15, 1)}, "ul2.denoisers"),
        ("denoisers", {"r1": ("R", 3, 0.15)}, "ul2.denoisers"),
        ("denoisers", {"r1": ("R", 3, 1.5, 1)}, "from 0 to 1"),
        ("denoisers", {"r1": ("R", 3, 0.0, 1)}, "a share above 0 and below 1"),
        ("denoisers", {"r1": ("R", 0.5, 0.2, 1)}, "spans of at least 1 token"),
        ("denoisers", {"r1": ("R", 3, 0.2, -1)}, "a number from 0"),
        ("denoisers", {"r1": ("R", 3, 0.2, float("nan"))}, "finite"),
        ("modes", "papers", "'paper' or 'released' or 'none'"),
    ],
)
def test_ul2_table_with_mistake_is_refused(tasks, parameter, value, told):
    gin.bind_parameter(f"ul2.{parameter}", value)
    with pytest.raises(UserError, match=told):
        objectives.objective_of(tasks["r1"], LENGTHS)


def test_ul2_needs_targets_and_sentinels_that_fit(tasks):
    with pytest.raises(UserError, match="need targets of"):
        objectives.objective_of(tasks["x1"], {"inputs": 220, "targets": 114})
    with pytest.raises(UserError, match="128 spans of .* need a sentinel each"):
        objectives.objective_of(tasks["x1"], {"inputs": 515, "targets": 512})
    with pytest.raises(UserError, match="inputs have 2 tokens after the mode token of 3"):
        objectives.objective_of(tasks["s"], {"inputs": 5, "targets": 512})
