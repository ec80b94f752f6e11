"""`t0 eval --num_fewshot=K`: the model reads the exemplars, and the results say K and the seed."""

import json

import pytest

from t0.testing import write_rows
from tests.end_to_end.tiny_world import WORDS

TASKS = "--tasks=weather_which_word_score_eval"
LENGTHS = "--lengths=inputs=256,targets=16"


@pytest.fixture
def evaluate(server, world, pretrained):
    def run(*words, data=None):
        folders = {"T0_DATA_DIR": str(data or world.folder / "data")}
        folders["T0_VOCAB"] = f"{world.folder}/vocab.model"
        words = ["eval", str(pretrained), LENGTHS, *map(str, words)]
        return server.run(*words, program="t0", environment=folders)

    return run


def scores_of(folder, task):
    lines = (folder / "scores" / f"{task}_1.jsonl").read_text().splitlines()
    return [[c["log_likelihood"] for c in json.loads(line)["choices"]] for line in lines]


@pytest.mark.slow
def test_few_shot_scores_equal_those_of_the_joined_texts(evaluate, tmp_path):
    def row(place, report, label):
        more = {"options": [*WORDS], "right": label}
        return {"place": place, "report": f"much {report}", "label": label, **more}

    def shown(row):
        return f"Report from {row['place']}: {row['report']}. Which weather?"

    train = [row("Oslo", "rain", 0), row("Lima", "heat", 3)]
    rows = [row("Cairo", "snow", 1), row("Perth", "wind", 2)]
    write_rows(tmp_path / "few" / "weather" / "train.jsonl", train)
    write_rows(tmp_path / "few" / "weather" / "validation.jsonl", rows)
    options = {"example_separator": " # ", "x_y_delimiter": " ", "seed": 3}
    words = ["--num_fewshot=2", f"--fewshot_options={json.dumps(options)}", TASKS]
    done = evaluate(*words, f"--output={tmp_path}/out_few", data=tmp_path / "few")
    assert done.status == 0, done.err
    run = json.loads((tmp_path / "out_few" / "results_1.json").read_text())["run"]
    assert (run["num_fewshot"], run["fewshot_seed"]) == (2, 3)
    assert run["fewshot_options"] == {"x_y_delimiter": " ", "example_separator": " # "}

    # Two training rows have two orders. The scores are those of one of them.
    shots = [f"{shown(row)} {WORDS[row['label']]} # " for row in train]
    joined = [
        row | {"place": (a + b + shown(row)).partition("from ")[2].rpartition(": much")[0]}
        for a, b in (shots, shots[::-1])
        for row in rows
    ]
    write_rows(tmp_path / "all" / "weather" / "validation.jsonl", joined)
    done = evaluate(TASKS, f"--output={tmp_path}/out_all", data=tmp_path / "all")
    assert done.status == 0, done.err
    run = json.loads((tmp_path / "out_all" / "results_1.json").read_text())["run"]
    assert "num_fewshot" not in run
    by_order = scores_of(tmp_path / "out_all", "weather_which_word_score_eval")
    scores = scores_of(tmp_path / "out_few", "weather_which_word_2shot_score_eval")
    for number, each in enumerate(scores):
        expected = [pytest.approx(by_order[number + 2 * order], rel=1e-4) for order in range(2)]
        assert each in expected
    assert [len(each) for each in scores] == [4, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cache_dirs=cache"], "--num_fewshot renders its prompts during the evaluation"),
        (['--fewshot_options={"k": 3}'], "unknown option of --fewshot_options 'k'"),
        (["--reproduce"], "--reproduce compares zero-shot results: leave out --num_fewshot"),
    ],
)
def test_few_shot_evaluations_that_are_refused(evaluate, words, message, tmp_path):
    tasks = [] if "--reproduce" in words else [TASKS]
    done = evaluate("--num_fewshot=2", *words, *tasks, f"--output={tmp_path}")
    assert done.status == 2
    assert message in done.err
