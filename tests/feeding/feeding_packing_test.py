import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t0.feeding import packing

LENGTHS = {"inputs": 10, "targets": 5}


def example(inputs, targets, first=2):
    ids = {"inputs": inputs, "targets": targets}
    return {name: np.arange(first, first + n, dtype=np.int32) for name, n in ids.items()}


def unpacked(rows):
    """Every segment's ids of each feature, and a check of its positions."""
    found = []
    for number in range(len(rows["inputs"])):
        row = {name: x[number] for name, x in rows.items()}
        count = max(row[f"{name}_segmentation"].max() for name in LENGTHS)
        for segment in range(1, count + 1):
            ids = []
            for name in LENGTHS:
                here = row[f"{name}_segmentation"] == segment
                positions = row[f"{name}_position"][here]
                assert positions.tolist() == list(range(here.sum()))
                assert (np.diff(np.flatnonzero(here)) == 1).all()
                ids.append(tuple(row[name][here].tolist()))
            found.append(tuple(ids))
        for name in LENGTHS:
            padding = row[f"{name}_segmentation"] == 0
            assert not row[name][padding].any()
            assert not row[f"{name}_position"][padding].any()
    return found


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(1, 7)), min_size=1, max_size=40))
def test_packing_puts_each_example_in_one_row_up_to_the_limit(sizes):
    examples = [example(a, b, first=2 + 20 * n) for n, (a, b) in enumerate(sizes)]
    rows = packing.pack(examples, LENGTHS, order=np.random.default_rng(0))
    wanted = [
        tuple(tuple(e[name][:limit].tolist()) for name, limit in LENGTHS.items()) for e in examples
    ]
    assert sorted(unpacked(rows)) == sorted(wanted)
    assert all(x.dtype == np.int32 for x in rows.values())
    assert all(rows[name].shape[1] == limit for name, limit in LENGTHS.items())


def test_packing_best_fit_takes_fullest_row_with_room():
    sizes = np.array([[7, 1], [6, 4], [4, 1], [3, 1]])
    rows = packing.assign(sizes, [10, 5])
    assert sorted(map(sorted, rows)) == [[0, 3], [1, 2]]
    # The targets' limit keeps them apart.
    assert len(packing.assign(np.array([[3, 4], [3, 4]]), [10, 5])) == 2


def test_packing_truncation_keeps_eos_of_the_feature():
    rows = packing.pack([example(12, 7)], LENGTHS, ends_in_eos=("targets",))
    assert rows["targets"][0].tolist() == [2, 3, 4, 5, 1]
    assert rows["inputs"][0, -1] == 11
    padded = packing.pad([example(3, 7)], LENGTHS, ends_in_eos=("targets",))
    assert padded["targets"][0].tolist() == [2, 3, 4, 5, 1]
    assert padded["inputs"][0].tolist() == [2, 3, 4] + [0] * 7


def test_packing_fills_inputs_to_98_percent():
    rng = np.random.default_rng(0)
    sizes = zip(
        rng.gamma(2, 50, 6000).astype(int) + 5, rng.gamma(1, 6, 6000).astype(int) + 2, strict=False
    )
    limits = {"inputs": 1024, "targets": 256}
    rows = packing.pack([example(a, b) for a, b in sizes], limits)
    assert packing.filled_share(rows, "inputs") > 0.98


@pytest.mark.parametrize("pack", [True, False])
def test_packing_row_order_depends_on_the_seed(pack):
    examples = [example(8, 2, first=n) for n in range(2, 40)]
    a, b = (
        packing.pack(examples, LENGTHS, order=np.random.default_rng(seed))["inputs"]
        for seed in (1, 2)
    )
    assert a.tolist() != b.tolist()
    assert sorted(a.tolist()) == sorted(b.tolist())
