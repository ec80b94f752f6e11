"""The arithmetic of T5's objectives, held against T5's own preprocessors and against itself."""

import dataclasses
import itertools

import numpy as np
import pytest
import seqio
from hypothesis import given, settings
from hypothesis import strategies as st
from t5.data import preprocessors as t5_preprocessors

from t0.feeding import data_spec, objectives, pretraining
from t0.feeding.token_files import Ragged
from tests.feeding.tiny_texts import examples_of_t5, restored

TOP = 358
SIZES = st.lists(st.integers(1, 90), min_size=1, max_size=12)


def ragged(sequences):
    values = np.concatenate([np.zeros(0, np.int32), *(np.array(s, np.int32) for s in sequences)])
    return Ragged(values, np.cumsum([0, *map(len, sequences)]))


def listed(sequences):
    return [sequences.values[a:b].tolist() for a, b in itertools.pairwise(sequences.ends.tolist())]


def tokens(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 250, size).astype(np.int32) for size in sizes]


def seeded(seed=0):
    return np.random.default_rng(seed)


@given(SIZES, st.integers(0, 9), st.sampled_from([(0.15, 3.0), (0.5, 3.0), (0.3, 1.0)]))
def test_span_corruption_inputs_and_targets_restore_original(sizes, seed, noise):
    given_tokens = ragged(tokens(sizes, seed))
    density, mean_span = noise
    lengths = given_tokens.lengths
    mask = pretraining.span_mask(lengths, seeded(seed), density=density, mean_span=mean_span)
    inputs = pretraining.with_sentinels(given_tokens, mask, TOP)
    targets = pretraining.with_sentinels(given_tokens, ~mask, TOP)
    start = 0
    for before, visible, hidden in zip(
        listed(given_tokens), listed(inputs), listed(targets), strict=True
    ):
        found, masked = restored(np.array(visible), np.array(hidden), TOP)
        own = mask[start : start + len(before)].tolist()
        start += len(before)
        assert found == before
        assert masked == own
        noise_tokens, spans = pretraining.spans(np.array(len(before)), density, mean_span)
        if len(before) > 1:
            assert sum(own) == noise_tokens
            assert not own[0]
            begins = [n for n in range(len(own)) if own[n] and not own[n - 1]]
            assert len(begins) == spans == sum(t > 250 for t in visible)


def test_span_mask_is_uniform_over_all_masks():
    # 8 tokens, 3 of them noise in 2 spans: 2 partitions of the noise, 4 of the rest.
    count = 8000
    mask = pretraining.span_mask(np.full(count, 8), seeded(), density=0.375, mean_span=1.5)
    found, times = np.unique(mask.reshape(count, 8), axis=0, return_counts=True)
    assert len(found) == 8
    assert times.min() / times.max() > 0.85


def test_span_corruption_of_568_tokens_gives_512_and_114():
    assert [int(n) for n in pretraining.spans(np.array(568), 0.15, 3.0)] == [85, 28]
    pieces = ragged(tokens([568] * 5))
    mask = pretraining.span_mask(pieces.lengths, seeded())
    for part, length in ((mask, 512), (~mask, 114)):
        made = pretraining.append_eos(pretraining.with_sentinels(pieces, part, TOP), 1, 512)
        assert made.lengths.tolist() == [length] * 5
        assert all(sequence[-1] == 1 for sequence in listed(made))


@given(SIZES)
def test_denoising_split_and_concatenate_keep_token_order(sizes):
    sequences = tokens(sizes)
    joined = pretraining.join_documents(ragged(sequences), 3)
    wanted = [sum((s.tolist() for s in sequences[n : n + 3]), []) for n in range(0, len(sizes), 3)]
    assert listed(joined) == wanted
    pieces = listed(pretraining.split(joined, 7))
    assert sum(pieces, []) == sum(wanted, [])
    assert [len(p) for p in pieces] == [
        size for w in wanted for size in [7] * (len(w) // 7) + [len(w) % 7] * (len(w) % 7 > 0)
    ]


def test_denoising_chunks_drop_padding_ids_and_empty_documents():
    documents = ragged([[5, 0, 6], [], [7]])
    taken = pretraining.chunks(documents, seeded(), order=np.array([2, 1, 0]))
    assert listed(taken) == [[7], [5, 0, 6]]
    assert listed(pretraining.join_documents(taken)) == [[7, 5, 6]]


def test_denoising_chunk_of_long_document_is_drawn_uniformly():
    document = np.arange(25)
    documents = ragged([document] * 600)
    taken = listed(pretraining.chunks(documents, seeded(), longest=10))
    found = {(t[0], t[-1]) for t in taken}
    assert found == {(0, 9), (10, 19), (20, 24)}
    counts = [sum(t[0] == start for t in taken) for start in (0, 10, 20)]
    assert min(counts) > 150


@given(SIZES, st.integers(0, 5))
def test_prefix_lm_mask_leaves_tokens_on_both_sides(sizes, seed):
    lengths = np.array(sizes)
    mask = pretraining.prefix_mask(lengths, seeded(seed))
    for part in np.split(mask, np.cumsum(lengths)[:-1]):
        assert 1 <= part.sum() <= len(part) - 1 or len(part) == 1 and not part.any()
        assert part[: part.sum()].all()


def test_eos_is_appended_within_the_length_limit():
    sequences = ragged([[5, 6, 7, 8], [9], []])
    assert listed(pretraining.append_eos(sequences, 1, 4)) == [[5, 6, 7, 1], [9, 1], [1]]
    assert listed(pretraining.append_eos(sequences, None, 3)) == [[5, 6, 7], [9], []]
    assert listed(pretraining.append_eos(sequences, 1, None)) == [[5, 6, 7, 8, 1], [9, 1], [1]]


@pytest.fixture(scope="module")
def features():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert vocabulary.vocab_size - 1 == TOP
    return dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary, add_eos=True))


def our_examples(step, features, lengths, ends=True):
    steps = [seqio.CacheDatasetPlaceholder(), step]
    steps += [seqio.preprocessors.append_eos_after_trim] if ends else []
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    task = seqio.Task("any", source, features, preprocessors=steps)
    objective = objectives.objective_of(task, lengths)
    return lambda documents: pretraining.examples(objective, lengths, documents, seeded())


def test_objective_makes_features_that_are_not_required(features, clean_registries):
    optional = {name: dataclasses.replace(x, required=False) for name, x in features.items()}
    seqio.TaskRegistry.add(
        "optional",
        source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"]),
        preprocessors=[
            seqio.CacheDatasetPlaceholder(),
            t5_preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=optional,
    )
    spec = data_spec.data_spec("optional", {"inputs": 64, "targets": 40}, use_cached=False)
    assert dict(spec.lengths) == {"inputs": 64, "targets": 40}


@pytest.mark.parametrize(
    "lengths", [{"inputs": 64, "targets": 40}, {"inputs": 512, "targets": 114}]
)
def test_span_corruption_equals_t5(features, lengths):
    # More than 128 documents, so that they are joined in two lots, each with a shorter last piece.
    documents = tokens(np.random.default_rng(3).integers(1, 80, 300))
    steps = [t5_preprocessors.span_corruption, seqio.preprocessors.append_eos_after_trim]
    theirs = examples_of_t5(steps, documents, lengths, features)
    ours = our_examples(steps[0], features, lengths)(ragged(documents))
    for name in lengths:
        assert ours[name].lengths.tolist() == [len(example[name]) for example in theirs]
    # With the masks that T5 drew, every token is the same.
    back = [restored(example["inputs"], example["targets"], TOP) for example in theirs]
    mask = np.concatenate([mask for _, mask in back])
    pieces = ragged([found for found, _ in back])
    joined = pretraining.join_documents(ragged(documents))
    segment = max(len(found) for found, _ in back)
    assert listed(pretraining.split(joined, segment)) == listed(pieces)
    for name, part in (("inputs", mask), ("targets", ~mask)):
        made = pretraining.append_eos(
            pretraining.with_sentinels(pieces, part, TOP), 1, lengths[name]
        )
        assert listed(made) == [example[name].tolist() for example in theirs]
        assert made.values.dtype == np.int32


@settings(max_examples=4)
@given(st.integers(0, 2**31 - 1))
def test_span_mask_has_noise_and_span_counts_of_t5(seed):
    import tensorflow.compat.v1 as tf

    lengths = [1, 2, 3, 9, 10, 11, 50, 100, 567, 568]
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = session.run(
            [
                t5_preprocessors.random_spans_noise_mask(n, 0.15, [(seed, 1), (seed, 2)])
                for n in lengths
            ]
        )
    for length, mask in zip(lengths, theirs, strict=True):
        ours = pretraining.span_mask(np.array([length]), seeded(seed))
        assert ours.shape == mask.shape
        assert ours.sum() == mask.sum()
        assert np.diff(ours.astype(int)).clip(0).sum() == np.diff(mask.astype(int)).clip(0).sum()


def test_prefix_lm_equals_t5(features):
    lengths = {"inputs": 33, "targets": 20}
    documents = tokens(np.random.default_rng(4).integers(1, 80, 200))
    steps = [t5_preprocessors.prefix_lm, seqio.preprocessors.append_eos_after_trim]
    theirs = examples_of_t5(steps, documents, lengths, features)
    ours = our_examples(steps[0], features, lengths)(ragged(documents))
    assert len(ours["inputs"].lengths) == len(theirs)
    # Pieces are the same, cut at another place; what goes past the targets' limit is lost to both.
    pieces = pretraining.split(ragged(documents), 32)
    mask = []
    for piece, example in zip(listed(pieces), theirs, strict=True):
        taken = len(example["inputs"]) - 1
        mask += [n < taken for n in range(len(piece))]
    for name, part in (("inputs", np.array(mask)), ("targets", ~np.array(mask))):
        made = pretraining.append_eos(pretraining.select_masked(pieces, part), 1, lengths[name])
        assert listed(made) == [example[name].tolist() for example in theirs]
    both = ours["inputs"].lengths + ours["targets"].lengths - 2
    cut = ours["targets"].lengths == lengths["targets"]
    assert (both == pieces.lengths)[~cut].all()


def test_full_lm_equals_t5(features):
    lengths = {"inputs": 5, "targets": 20}
    features = {"targets": features["targets"]}
    documents = tokens(np.random.default_rng(5).integers(1, 50, 200))
    theirs = examples_of_t5([t5_preprocessors.full_lm], documents, lengths, features)
    ours = our_examples(t5_preprocessors.full_lm, features, lengths, ends=False)(ragged(documents))
    assert listed(ours["targets"]) == [example["targets"].tolist() for example in theirs]
