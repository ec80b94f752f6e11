"""Half of a surrogate pair in JSON: every command names file and row, or skips and counts rows."""

import json

import pytest

from t0.testing import write_rows, write_templates
from tests.end_to_end.command_lines import TRAIN
from tests.helpers.command_server import CommandServer

HALF = "cut \ud83d"
BAD = (3, 11)
ROWS = 24


def texts(count=ROWS):
    return [f"wet {HALF if i in BAD else 'sun'} {i}" for i in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A dataset of own prompts, and a folder of each recipe, with half characters in two rows."""
    folder = tmp_path_factory.mktemp("halves") / "data"
    moods = folder / "moods"
    write_templates(moods, {"ask": ("{{text}} Good? ||| {{answer_choices[label]}}", "no ||| yes")})
    for split in ("train", "validation"):
        rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts())]
        write_rows(moods / f"{split}.jsonl", rows)
    documents = {
        "qa/toy/train.json": [{"question": t, "context": "c", "answers": ["a"]} for t in texts()],
        "mt/train.json": {"en": texts(), "de": ["b"] * ROWS},
        "text/train.json": {"data": [{"text": text} for text in texts()]},
    }
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def server(world, data):
    """Runs commands over `data`, whose tasks a module registers once in a process."""
    own = CommandServer({**world.environment, "T0_DATA_DIR": str(data)})
    yield own
    own.close()


def refusal(done):
    assert done.status in (1, 2), done.out + done.err
    assert "Traceback" not in done.err
    return " ".join(done.err.split())


RECIPES = {"qa_toy": "qa/toy", "mt_en_de": "mt", "text_lm": "text"}


def cache(server, folder, *words, tasks="moods_ask", module="t0.seqio_tasks"):
    words = [f"--tasks={tasks}", f"--module_import={module}", *words]
    words += [f"--output_cache_dir={folder}", "--splits=train", "--num_workers=0"]
    return server.run(*words, program="seqio_cache_tasks")


def examples(folder, task, split="train"):
    return json.loads((folder / task / f"stats.{split}.json").read_text())["examples"]


def test_half_surrogate_in_caching_of_own_prompts(server, data, tmp_path):
    text = refusal(cache(server, tmp_path / "bad"))
    assert f"{data / 'moods' / 'train.jsonl'}, line 4, column 'text'" in text
    assert "--skip_bad_rows" in text
    done = cache(server, tmp_path / "good", "--skip_bad_rows")
    assert done.status == 0, done.err
    assert "moods/train.jsonl: skipped 2 rows" in done.err
    assert examples(tmp_path / "good", "moods_ask") == ROWS - 2


def test_half_surrogate_in_caching_of_recipes(server, data, tmp_path):
    names = {"tasks": ",".join(RECIPES), "module": "t0.recipes"}
    text = refusal(cache(server, tmp_path / "bad", **names))
    for task, folder in RECIPES.items():
        assert f"{task} split 'train': {data / folder / 'train.json'}, row 3 (the first" in text
    done = cache(server, tmp_path / "good", "--skip_bad_rows", **names)
    assert done.status == 0, done.err
    for task, folder in RECIPES.items():
        assert f"{folder}/train.json: skipped 2 rows" in done.err
        assert examples(tmp_path / "good", task) == ROWS - 2


def test_half_surrogate_in_training_is_refused_or_skipped(server, data, tmp_path):
    live = [*TRAIN, "--gin_param=MIXTURE_NAME = 'moods_ask'", "--gin_param=run.train_steps = 1"]
    live += [
        "--gin_param=mesh_train_dataset_fn.use_cached = False",
        "--module_import=t0.seqio_tasks",
        "--gin_param=t0.packing.rows = 4",  # a window of 512 rows would read the few rows 200 times
    ]
    text = refusal(server.run(f"--model_dir={tmp_path / 'a'}", *live))
    assert f"{data / 'moods' / 'train.jsonl'}, line 4, column 'text'" in text
    done = server.run(f"--model_dir={tmp_path / 'b'}", *live, "--skip_bad_rows")
    assert done.status == 0, done.err
    assert "moods/train.jsonl: skipped 2 rows" in done.err


def test_half_surrogate_in_init_show_and_lint(server, data, tmp_path):
    file = data / "moods" / "train.jsonl"
    commands = {
        "init": ["feelings", str(file), f"--output={tmp_path / 'new'}"],
        "show": ["moods_ask", "--row=3"],
    }
    for verb, words in commands.items():
        assert f"{file}, line 4, column 'text'" in refusal(server.run(verb, *words, program="t0"))
        done = server.run(verb, *words, "--skip_bad_rows", program="t0")
        assert done.status == 0, done.err
    # The whole file is checked, though few rows are rendered.
    words = ["moods_ask", "--rows=2"]
    done = server.run("lint", *words, program="t0")
    assert done.status == 1
    assert f"{file}, line 4, column 'text'" in done.out
    done = server.run("lint", *words, "--skip_bad_rows", program="t0")
    assert (done.status, done.err.count("skipped 2 rows")) == (0, 2)
