"""`t0.recipes` registers the folders of instructions, questions and translations."""

import importlib

import pytest

from t0.errors import UserError
from tests.sources import tiny_recipes


def recipes():
    return importlib.import_module("t0.recipes").registered()


def test_recipe_folders_become_tasks(tmp_path, imported):
    import seqio

    from t0.tasks.instruction_tasks import VARIANTS

    tiny_recipes.lay_out(tmp_path)
    with imported(tmp_path):
        found = recipes()
        assert found["sni"] == tuple(VARIANTS)
        assert set(found["qa"]) == {"qa_memory", "qa_toy"}
        assert set(found["mt"]) == {"mt_en_de", "mt_de_en"}
        assert seqio.TaskRegistry.get("qa_toy").splits == ("train", "validation")
        assert "super_glue_rte_GPT_3_style" in seqio.TaskRegistry.names()
        mixture = seqio.MixtureRegistry.add("both", [("qa_toy", 1), ("mt_en_de", 1)])
        assert len(mixture.tasks) == 2  # their features agree


def test_recipe_datasets_of_several_folders(tmp_path, imported):
    for number, pair in enumerate(("en-fr", "medical", "fr_en_more")):
        rows = [{"translation": {"en": "a", "fr": "b"}}]
        tiny_recipes.write_lines(tmp_path / str(number) / "mt" / pair / "train.jsonl", rows)
    tiny_recipes.write_lines(tmp_path / "0" / "qa" / "dev.jsonl", [tiny_recipes.SQUAD_ROW])
    with imported(*(tmp_path / str(number) for number in range(3))):
        found = recipes()
        directions = [
            f"mt_{x}{y}" for x in ("", "medical_", "fr_en_more_") for y in ("en_fr", "fr_en")
        ]
        assert sorted(found["mt"]) == sorted(directions)
        assert found["qa"] == ("qa",)
        assert "sni" not in found


def test_recipe_folder_with_prompts_is_not_a_recipe(tmp_path, imported):
    tiny_recipes.lay_out(tmp_path)
    (tmp_path / "qa" / "toy" / "templates.yaml").write_text("templates: {}\n")
    with imported(tmp_path):
        assert recipes()["qa"] == ("qa_memory",)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("sni", "neither a train_tasks.txt nor a test_tasks.txt"),
        ("qa", "no questions. Put a folder for each dataset there"),
        ("mt", "no translations. Put files"),
    ],
)
def test_recipe_folder_that_is_empty_is_refused(tmp_path, imported, kind, wanted):
    (tmp_path / kind).mkdir()
    with imported(tmp_path), pytest.raises(UserError) as raised:
        recipes()
    assert wanted in str(raised.value)
    assert str(tmp_path / kind) in str(raised.value)


def test_recipe_translation_of_unknown_language_is_refused(tmp_path, imported):
    row = {"translation": {"en": "a", "xx": "b"}}
    tiny_recipes.write_lines(tmp_path / "mt" / "train.jsonl", [row])
    with imported(tmp_path), pytest.raises(UserError, match="'xx' is not a language code"):
        recipes()
