"""`t0 overlap`: what it prints and writes, and what it refuses in one line."""

import json

import pytest

from t0.cli import main as cli
from tests.overlap import planted


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return planted.lay_out(tmp_path_factory.mktemp("planted"))


@pytest.fixture
def overlap(data, tmp_path, capsys, monkeypatch):
    """Runs `t0 overlap WORDS`; returns (status, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def run(*words, train="books_read", evaluation="quiz_.*"):
        try:
            status = cli.main(
                [
                    *("overlap", f"--train={train}", f"--eval={evaluation}", "--output=out"),
                    *(f"--data_dir={data}", *words),
                ]
            )
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_data_overlap_prints_tables_and_output_paths(overlap, tmp_path):
    status, out, err = overlap("--min_words=4")
    assert (status, err) == (0, "")
    table = (tmp_path / "out" / "overlap.txt").read_text()
    assert out == f"{table}\nout/overlap.txt\nout/rows.jsonl\nout/overlap.json\n"
    facts = json.loads((tmp_path / "out" / "overlap.json").read_text())
    assert facts["datasets"]["quiz"]["overlapping"] == {"13": 6, "8": 6}


def test_data_overlap_with_another_ngram_length(overlap, tmp_path):
    assert overlap("--ngrams=6")[0] == 0
    facts = json.loads((tmp_path / "out" / "overlap.json").read_text())
    assert facts["datasets"]["quiz"]["overlapping"] == {"6": 5}  # one row has four words


@pytest.mark.parametrize(
    ("words", "given", "part"),
    [
        (["--ngrams=13,x"], {}, "--ngrams 13,x: expected lengths from 2 to 100"),
        (["--ngrams="], {}, "expected lengths"),
        (["--min_words=0"], {}, "--min_words is 0; expected a whole number from 1"),
        (["--num_workers=-1"], {}, "--num_workers is -1; expected a whole number from 0"),
        (["--eval_split=dev"], {}, "has a split 'dev'"),
        (["--vocab=/no/such.model"], {}, "vocabulary not found: /no/such.model"),
        ([], {"train": "/no/such/cache"}, "/no/such/cache has no cache"),
        ([], {"evaluation": "quizzz"}, "unknown task or mixture 'quizzz'"),
        ([], {"evaluation": "quiz_blind"}, "have no text of 5 words or more"),
    ],
)
def test_data_overlap_user_error_is_one_line(overlap, tmp_path, words, given, part):
    status, out, err = overlap(*words, **given)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("t0 overlap: ")
    assert part in err
    assert not (tmp_path / "out" / "overlap.json").exists()


def test_data_overlap_output_that_cannot_be_written(overlap, tmp_path):
    (tmp_path / "out").write_text("a file")
    status, _, err = overlap()
    assert (status, err.count("\n")) == (2, 1)
    assert "out" in err
