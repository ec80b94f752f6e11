"""Answers that are decoded beside the ranking, and judged by exact match."""

import json

import pytest

from t0.errors import UserError
from t0.evaluation import rank_metrics, ranking
from t0.evaluation.merging import merge
from tests.evaluation.made_up_ranking import (
    STEPS,
    Decoder,
    contents,
    evaluate,
    interrupted_at_write,
)

# The third task has an input for each choice.
TASKS = ("first", "second")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(rank_metrics, "WINDOW", 4)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("  The\tCat. ", "the cat"),
        ("“Yes!”", "yes"),
        ("A", "a"),
        ("?!", "?!"),
        ("don't. stop", "don't. stop"),
        ("STRASSE", "strasse"),
        ("straße", "strasse"),
        ("", ""),
    ],
)
def test_exact_match_answer_normalization(text, normal):
    assert rank_metrics.normalize_answer(text) == normal


def test_decoded_answers_are_written_next_to_the_scores(tmp_path):
    evaluate(tmp_path, tasks=TASKS, decoder=Decoder())
    evaluate(tmp_path / "plain", tasks=TASKS)
    for step in STEPS:
        entries = json.loads((tmp_path / f"results_{step}.json").read_text())["tasks"]
        for name, entry in entries.items():
            file = f"{name}_{step}.jsonl"
            lines = read(tmp_path / "answers" / file)
            scored = [line for line in read(tmp_path / "scores" / file) if line["gold"] >= 0]
            assert [line["idx"] for line in lines] == [line["idx"] for line in scored]
            rights = []
            for line, example in zip(lines, scored, strict=True):
                texts = [choice["text"] for choice in example["choices"]]
                given = line["answer"].strip(" .").lower()
                assert line["choice"] == (texts.index(given) if given in texts else None)
                rights.append(given == texts[example["gold"]])
                assert line["exact_match"] == rights[-1]
            decoded = entry["decoded"]
            assert decoded["exact_match"] == pytest.approx(100 * sum(rights) / len(rights))
            assert 0 < decoded["exact_match"] < 100
            unlisted = sum(line["choice"] is None for line in lines)
            assert decoded["no_choice"] == pytest.approx(100 * unlisted / len(lines))
            assert decoded["normalisation"] == rank_metrics.NORMALISATION
            assert decoded["most_tokens"] == 16
        # Ranking is the same with and without.
        plain = json.loads((tmp_path / "plain" / f"results_{step}.json").read_text())["tasks"]
        without = {
            name: {key: value for key, value in entry.items() if key != "decoded"}
            for name, entry in entries.items()
        }
        assert without == plain


def read(path):
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_sharding_merges_decoded_answers_of_all_shards(tmp_path):
    evaluate(tmp_path / "whole", tasks=TASKS, decoder=Decoder())
    parts = []
    for shard in range(2):
        parts.append(Decoder())
        evaluate(tmp_path / "shards", shard, 2, tasks=TASKS, decoder=parts[-1])
    assert all(part.decoded for part in parts)
    merge([str(tmp_path / "shards")], str(tmp_path / "merged"))
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    # One shard with answers and one without are of different runs.
    evaluate(tmp_path / "shards", 1, 2, tasks=TASKS)
    with pytest.raises(UserError, match="they differ in decoded answers"):
        merge([str(tmp_path / "shards")], str(tmp_path / "again"))


@pytest.mark.parametrize("write", [9, 11, 12])
def test_resume_of_interrupted_answer_decoding(tmp_path, write):
    evaluate(tmp_path / "whole", tasks=TASKS, decoder=Decoder())
    interrupted_at_write(write, tmp_path / "killed", tasks=TASKS, decoder=Decoder())
    rest = Decoder()
    assert evaluate(tmp_path / "killed", tasks=TASKS, decoder=rest) == 0  # all is scored
    every = Decoder()
    evaluate(tmp_path / "every", tasks=TASKS, decoder=every)
    assert (rest.decoded < every.decoded) == (write > 10)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_decoded_answers_that_cannot_be_decoded_are_refused(tmp_path):
    with pytest.raises(UserError, match="third, example 0: its choices have different inputs"):
        evaluate(tmp_path, decoder=Decoder())
    given = dict.fromkeys(("lengths", "open_model", "limits"))
    settings = ranking.RankEvaluationSettings(decode_answers=True)
    with pytest.raises(UserError, match="this engine cannot decode answers"):
        ranking.rank([], str(tmp_path), {}, settings=settings, **given)
