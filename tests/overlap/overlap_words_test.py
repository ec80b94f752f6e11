"""Words and their runs: what is equal after normalisation has equal hashes, and nothing else."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.overlap.words import split_words, word_list

TEXTS = st.lists(
    st.text(
        st.sampled_from("aAbBéÉ\u0301 .,'\u2019-1\n\u4e2d\u6587\u0e01\u00ad\ufb01ß_"), max_size=30
    )
    | st.text(max_size=12),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The cat sat.", "the CAT sat"),
        ("Don't!", "don\u2019t"),
        ("re-read this", "Re read\tthis"),
        ("\ufb01ne caf\u00e9", "fine cafe\u0301"),
        ("\uff21\uff22 12", "ab 12"),
        ("Stra\u00dfe", "STRASSE"),
        ("in\u00advisible", "invisible"),
        ("snake_case", "snake case"),
        ("\u4e2d\u6587\u3002", "\u4e2d \u6587"),
    ],
)
def test_overlap_words_equal_after_normalization(one, other):
    assert word_list(one) == word_list(other)
    assert split_words([one]).hashes.tolist() == split_words([other]).hashes.tolist()


def test_overlap_words_of_scripts_without_spaces():
    assert word_list("A\u4e2d\u6587b \u0e01\u0e02") == [
        "a",
        "\u4e2d",
        "\u6587",
        "b",
        "\u0e01",
        "\u0e02",
    ]
    assert word_list("It's 1,000 o'clock") == ["its", "1", "000", "oclock"]


@settings(max_examples=60)
@given(TEXTS, st.integers(1, 4))
def test_overlap_word_hashes_are_equal_where_words_are(texts, length):
    words = split_words(texts)
    lists = [word_list(text) for text in texts]
    assert np.diff(words.ends).tolist() == [len(some) for some in lists]
    positions, hashes = words.windows(length)
    runs = [
        tuple(some[start : start + length])
        for some in lists
        for start in range(len(some) - length + 1)
    ]
    of_run = collections.defaultdict(set)
    for run, value in zip(runs, hashes.tolist(), strict=True):
        of_run[run].add(value)
    assert all(len(values) == 1 for values in of_run.values())
    assert len(set(itertools.chain.from_iterable(of_run.values()))) == len(of_run)
    assert words.hash_sequences(positions, length).tolist() == hashes.tolist()


@settings(max_examples=30)
@given(TEXTS)
def test_overlap_word_hashes_do_not_depend_on_the_batch(texts):
    together = split_words(texts)
    apart = [split_words([text]) for text in texts]
    assert together.hashes.tolist() == [h for one in apart for h in one.hashes.tolist()]
    found = [h for one in apart for h in one.windows(2)[1].tolist()]
    assert together.windows(2)[1].tolist() == found


def test_overlap_word_hashes_are_the_same_in_every_process():
    # In files that worker processes read.
    words = split_words(["The cat's mat"])
    assert [f"{value:016x}" for value in words.hashes.tolist()] == HASHES
    assert f"{words.windows(3)[1][0]:016x}" == RUN


HASHES = ["cb1283631cf33d7d", "d2142f36ea192687", "c2bc2d60d7de2610"]
RUN = "af9747e5c04fd0df"
