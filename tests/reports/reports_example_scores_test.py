import json
import math

import pytest

from t0.errors import UserError
from t0.reports.example_scores import read_scores
from tests.reports.made_up_evaluations import example_line


def write_scores(path, *lines):
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_example_scores_with_ragged_choices_and_ties(tmp_path):
    lines = [
        example_line(7, [-1.0, -1.0], 0),  # tied, right
        example_line(3, [-1.0, -9.0, -4.0], 2),  # wrong by 3
        example_line(9, [-1.0, -2.0, -6.5, -8.0], 2),  # wrong by 5.5
        example_line(1, [-1.0, -2.0], None),  # excluded
        example_line(4, [-3.0, -2.0], 1),
    ]
    scores = read_scores(write_scores(tmp_path / "s.jsonl", *lines))
    assert scores.idx.tolist() == [7, 3, 9, 4]
    assert scores.correct.tolist() == [True, False, False, True]
    assert scores.tied.tolist() == [True, False, False, False]
    assert scores.accuracy == 50.0
    assert scores.chance == pytest.approx((50 + 100 / 3 + 25 + 50) / 4)
    assert scores.prediction.tolist() == [0, 0, 0, 1]
    assert scores.confidence[[0, 3]].tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-1))])
    assert scores.labels is None


BAD_LINES = {
    "NaN": (
        '{"idx": 1, "choices": [{"text": "a", "log_likelihood": NaN}], "gold": 0, "prediction": 0}',
        "finite number",
    ),
    "missing score": (
        {"idx": 1, "choices": [{"text": "a"}], "gold": 0, "prediction": 0},
        r"choices\[0\] has no field 'log_likelihood'",
    ),
    "gold out of range": (example_line(1, [-1.0, -2.0], 2), "2 choices"),
    "prediction is not the best": (
        example_line(1, [-1.0, -2.0], 0, prediction=1),
        "not the choice",
    ),
    "no choices": ({"idx": 1, "choices": [], "gold": 0, "prediction": 0}, "0 choices"),
    "no idx": ({**example_line(1, [-1.0], 0), "idx": None}, "'idx'"),
    "idx twice": (example_line(0, [-1.0, -2.0], 0), "twice"),
    "cut short": ('{"idx": 1, "choi', "not valid JSON"),
    "not an object": ("[1]", "expected an object"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_example_scores_error_names_file_and_line(tmp_path, name):
    line, message = BAD_LINES[name]
    path = write_scores(tmp_path / "s.jsonl", example_line(0, [-1.0, -2.0], 0), line)
    with pytest.raises(UserError, match=message) as caught:
        read_scores(path)
    assert f"{path}, line 2" in str(caught.value)
