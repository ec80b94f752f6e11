"""`t0.recipes` registers what the data folders hold: here the folders of text."""

import argparse
import importlib
import json

import pytest

from t0.errors import UserError
from t0.tasks.denoisers import UL2

OBJECTIVES = ("span_corruption", "prefix_lm", "lm")


def write(path, *texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def recipes():
    return importlib.import_module("t0.recipes").registered()


def test_recipe_text_folders_become_tasks(tmp_path, imported):
    import seqio

    write(tmp_path / "one" / "text" / "train.jsonl", "a", "b")
    write(tmp_path / "one" / "text" / "my books" / "train" / "x.jsonl", "c")
    write(tmp_path / "one" / "text" / "my books" / "dev.jsonl", "d")
    (tmp_path / "two").mkdir()
    with imported(tmp_path / "one", tmp_path / "two"):
        assert not any(name.startswith("text_") for name in seqio.TaskRegistry.names())
        found = recipes()
        prefixes = ("text", "text_my_books")
        objectives = (*OBJECTIVES, *(f"ul2_{name}" for name in UL2))
        assert found["text"] == tuple(f"{p}_{o}" for p in prefixes for o in objectives)
        mixture = seqio.MixtureRegistry.get("text_my_books_ul2")
        assert [task.name for task in mixture.tasks] == sorted(
            f"text_my_books_ul2_{name}" for name in UL2
        )
        assert seqio.TaskRegistry.get("text_lm").splits == ("train",)
        books = seqio.TaskRegistry.get("text_my_books_prefix_lm")
        assert books.splits == ("train", "validation")
        rows = books.source.get_dataset("validation").as_numpy_iterator()
        assert [row["text"] for row in rows] == [b"d"]
        # Nothing is asked of the hub before it is read, and the tests have no network.
        assert found["hub"] == tuple(f"c4_hub_{objective}" for objective in objectives)
        assert seqio.TaskRegistry.get("c4_hub_lm").splits == ("train", "validation")


def test_recipe_text_name_in_two_folders_is_refused(tmp_path, imported):
    for name in ("one", "two"):
        write(tmp_path / name / "text" / "train.jsonl", "a")
    with imported(tmp_path / "one", tmp_path / "two"):
        with pytest.raises(UserError, match="two/text: .*'text_span_corruption' exists already"):
            recipes()
        import seqio

        # Nothing is left half registered.
        assert not any(name.startswith("text_") for name in seqio.TaskRegistry.names())


def test_recipe_text_folder_that_is_empty_is_refused(tmp_path, imported):
    (tmp_path / "text").mkdir()
    with imported(tmp_path), pytest.raises(UserError, match="text: has no text files"):
        recipes()
    write(tmp_path / "text" / "train.jsonl", "a")
    (tmp_path / "text" / "raw").mkdir()
    with imported(tmp_path), pytest.raises(UserError, match="text/raw: has no text files"):
        recipes()


def test_recipe_text_tasks_are_listed_without_a_size(tmp_path, imported, capsys):
    from t0.cli import tasks

    write(tmp_path / "text" / "train.jsonl", "a")
    with imported(tmp_path):
        asked = {"regex": "text_lm", "data_dir": None, "cache_dirs": "", "json": False}
        asked |= {"rates": False, "steps": None}
        tasks.main(argparse.Namespace(module_import=["t0.recipes"], **asked))
    assert "train ?" in capsys.readouterr().out
