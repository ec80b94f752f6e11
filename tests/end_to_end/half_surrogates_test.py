"""Half of a surrogate pair in JSON: every command names file and row, or skips and counts rows."""

import json

import pytest

from tests.end_to_end.command_lines import TRAIN
from tests.end_to_end.tiny_world import HALVES_ROWS, halves_texts


@pytest.fixture(scope="module")
def recipes_data(tmp_path_factory):
    """A folder of each recipe, with half characters in two rows."""
    folder, texts = tmp_path_factory.mktemp("halves"), halves_texts()
    documents = {
        "qa/toy/train.json": [{"question": t, "context": "c", "answers": ["a"]} for t in texts],
        "mt/train.json": {"en": texts, "de": ["b"] * HALVES_ROWS},
        "text/train.json": {"data": [{"text": text} for text in texts]},
    }
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(json.dumps(document))
    return folder


@pytest.fixture
def moods(world):
    """The file of a dataset of own prompts."""
    return world.folder / "data" / "moods" / "train.jsonl"


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


def test_half_surrogate_in_caching_of_own_prompts(server, moods, tmp_path):
    text = refusal(cache(server, tmp_path / "bad"))
    assert f"{moods}, line 4, column 'text'" in text
    assert "--skip_bad_rows" in text
    done = cache(server, tmp_path / "good", "--skip_bad_rows")
    assert done.status == 0, done.err
    assert "moods/train.jsonl: skipped 2 rows" in done.err
    assert examples(tmp_path / "good", "moods_ask") == HALVES_ROWS - 2


def test_half_surrogate_in_caching_of_recipes(server, recipes_data, tmp_path):
    names = {"tasks": ",".join(RECIPES), "module": "t0.recipes"}
    words = [f"--data_dir={recipes_data}"]
    text = refusal(cache(server, tmp_path / "bad", *words, **names))
    for task, folder in RECIPES.items():
        path = recipes_data / folder / "train.json"
        assert f"{task} split 'train': {path}, row 3 (the first" in text
    done = cache(server, tmp_path / "good", "--skip_bad_rows", *words, **names)
    assert done.status == 0, done.err
    for task, folder in RECIPES.items():
        assert f"{folder}/train.json: skipped 2 rows" in done.err
        assert examples(tmp_path / "good", task) == HALVES_ROWS - 2


def test_half_surrogate_in_training_is_refused_or_skipped(server, moods, tmp_path):
    live = [*TRAIN, "--gin_param=MIXTURE_NAME = 'moods_ask'", "--gin_param=run.train_steps = 1"]
    live += [
        "--gin_param=mesh_train_dataset_fn.use_cached = False",
        "--module_import=t0.seqio_tasks",
        "--gin_param=t0.packing.rows = 4",  # a window of 512 rows would read the few rows often
    ]
    text = refusal(server.run(f"--model_dir={tmp_path / 'a'}", *live))
    assert f"{moods}, line 4, column 'text'" in text
    done = server.run(f"--model_dir={tmp_path / 'b'}", *live, "--skip_bad_rows")
    assert done.status == 0, done.err
    assert "moods/train.jsonl: skipped 2 rows" in done.err


def test_half_surrogate_in_init_show_and_lint(server, moods, tmp_path):
    commands = {
        "init": ["feelings", str(moods), f"--output={tmp_path / 'new'}"],
        "show": ["moods_ask", "--row=3"],
    }
    for verb, words in commands.items():
        assert f"{moods}, line 4, column 'text'" in refusal(server.run(verb, *words, program="t0"))
        done = server.run(verb, *words, "--skip_bad_rows", program="t0")
        assert done.status == 0, done.err
    # The whole file is checked, though few rows are rendered.
    words = ["moods_ask", "--rows=2"]
    done = server.run("lint", *words, program="t0")
    assert done.status == 1
    assert f"{moods}, line 4, column 'text'" in done.out
    done = server.run("lint", *words, "--skip_bad_rows", program="t0")
    assert (done.status, done.err.count("skipped 2 rows")) == (0, 2)
