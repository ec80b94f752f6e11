"""What becomes of a row, and what is counted of it."""

import pytest

from t0.prompts import NO_LABEL, Example, RowReport


def example(targets="yes", choices=("no", "yes")):
    return Example("?", targets, None if choices is None else list(choices))


def test_row_report_counts_rows_that_render_nothing():
    report = RowReport(hide_labels=True, ranked=True)
    for index, withheld in ((4, False), (7, True)):
        assert report.target(None, withheld, index) is None
    assert report.target(example(), False, 8) == "yes"
    assert report.counts == {"rows": 3, "rendered nothing": 2}
    assert report.first == {"rendered nothing": 4}
    assert not report.labels


@pytest.mark.parametrize(
    ("hide", "target", "counts"),
    [(True, NO_LABEL, {"rows": 1, "hidden label": 1}), (False, "yes", {"rows": 1})],
)
def test_row_report_hides_labels_only_on_request(hide, target, counts):
    report = RowReport(hide_labels=hide, ranked=True)
    assert report.target(example(), True, 0) == target
    assert report.counts == counts
    # Hidden is not the same as a label that is not there.
    assert not report.labels


@pytest.mark.parametrize(
    ("rendered", "labels", "ranked"),
    [
        (example(), {}, {}),
        (example(choices=None), {}, {}),
        (example("maybe"), {"target is no choice": 1}, {"no one correct choice": 1}),
        (example(choices=["yes", "yes"]), {}, {"no one correct choice": 1}),
        (
            example(NO_LABEL),
            {"no label": 1, "target is no choice": 1},
            {"no one correct choice": 1},
        ),
        (example(NO_LABEL, None), {"no label": 1}, {}),
    ],
)
def test_row_report_counts_labels_that_fit_no_choice(rendered, labels, ranked):
    for counting in (True, False):
        report = RowReport(hide_labels=False, ranked=counting)
        assert report.target(rendered, False, 3) == rendered.targets
        assert report.labels == labels
        assert report.counts == {"rows": 1, **(ranked if counting else {})}
        assert report.first == dict.fromkeys([*labels, *(ranked if counting else {})], 3)
