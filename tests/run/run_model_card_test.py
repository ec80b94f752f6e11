"""Model cards: metadata as huggingface_hub reads them, prompts, results, and hostile names."""

import re
import statistics

import pytest
from huggingface_hub import ModelCard as HubCard

from t0.errors import UserError
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt
from t0.prompts.templates import Template
from t0.run.model_card import ModelCard, find_base_model, read_results
from tests.reports.made_up_evaluations import Decoded, Evaluation, random_lines

HOSTILE = "a: [b] |*_<img src=x>\n---\n# `x`"


def write_prompts(folder, *prompts):
    recorded = [
        RecordedPrompt(task, dataset, False, Template("p", jinja, choices, "", True, False, (), ""))
        for task, dataset, jinja, choices in prompts
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = ModelPrompts({"inputs": 9, "targets": 9}, "v", tuple(recorded)).to_json()
    (folder / "prompts.json").write_text(text)
    return str(folder)


@pytest.fixture
def results(tmp_path):
    """Results of step 100, of RTE with three prompts, and of text decoded for a task."""
    folder = tmp_path / "tiny" / "eval"
    made = Evaluation(folder, split="validation")
    for p in range(3):
        made.add(f"rte_{p}", "super_glue/rte", f"prompt {p}", random_lines(40, [2], p))
    Decoded(folder, split="test").add("summaries", {"rouge1": 31.25}, []).write()
    made.write()
    return folder


def test_model_card_is_read_by_the_hubs_library(results, tmp_path):
    folder = write_prompts(
        tmp_path / "model",
        ("rte_0", "super_glue/rte", "{{premise}} ||| {{label}}", "yes ||| no"),
        ("own_0", "my_reviews", "{{text}} ||| {{label}}", None),
    )
    card = ModelCard("mine", "bigscience/T0_3B", "apache-2.0", folder)
    text = card.markdown(read_results([results], step=100))
    data = HubCard(text).data
    assert (data.base_model, data.license) == ("bigscience/T0_3B", "apache-2.0")
    assert (data.library_name, data.datasets) == ("transformers", ["super_glue"])
    assert data.model_name == "mine"
    made = Evaluation(results)
    for p in range(3):
        made.add(f"rte_{p}", "x", "", random_lines(40, [2], p), with_scores=False)
    accuracies = [task["metrics"]["accuracy"] for task in made.tasks.values()]
    assert {
        (e.dataset_type, e.dataset_config, e.dataset_split, e.metric_type, e.metric_value)
        for e in data.eval_results
    } == {
        ("super_glue", "rte", "validation", "accuracy", round(statistics.mean(accuracies), 2)),
        ("super_glue", "rte", "validation", "accuracy", round(statistics.median(accuracies), 2)),
        ("summaries", None, "test", "rouge1", 31.25),
    }
    body = HubCard(text).text
    assert "```jinja\n{{premise}} ||| {{label}}\n```" in body and "yes ||| no" in body
    assert re.search(
        rf"\| RTE \| validation \| 3 \| 40 \| {statistics.mean(accuracies):.1f} ", body
    )


def test_model_card_leaves_out_unknown_facts():
    data = HubCard(ModelCard("mine").markdown(())).data.to_dict()
    assert data == {"library_name": "transformers", "pipeline_tag": "text2text-generation"}


def test_model_card_keeps_hostile_names_in_their_fields(tmp_path):
    made = Evaluation(tmp_path / "x" / "eval", split=HOSTILE)
    made.add("task", HOSTILE, HOSTILE, random_lines(9, [2], 1)).write()
    folder = write_prompts(tmp_path / "m", (HOSTILE, HOSTILE, "``` {{x}} ||| y", None))
    text = ModelCard(HOSTILE, license=HOSTILE, training_folder=folder).markdown(
        read_results([made.folder], step=None)
    )
    card = HubCard(text)
    assert card.data.license == HOSTILE and card.data.datasets is None
    assert "<img" not in card.text.replace(r"\<img", "")
    assert "````jinja\n``` {{x}} ||| y\n````" in card.text
    table = [line for line in card.text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}


def test_model_card_shows_the_first_twenty_prompts(tmp_path):
    prompts = [(f"task_{n}", "d", f"{n} ||| y", None) for n in range(23)]
    text = ModelCard("m", training_folder=write_prompts(tmp_path, *prompts)).markdown(())
    assert text.count("```jinja") == 20 and "3 more prompts are not shown" in text


def test_results_of_another_step_are_refused(results):
    assert len(read_results([results], step=None)) == 2
    with pytest.raises(UserError, match="of step 100, 100, but the checkpoint is of step 7"):
        read_results([results], step=7)


def test_base_model_comes_from_the_hubs_cache_and_never_from_a_local_path(tmp_path):
    config = tmp_path / "operative_config.gin"
    for path, name in (
        ("/c/models--google--flan-t5-xl/snapshots/7d/model", "google/flan-t5-xl"),
        ("/home/me/t5", ""),
        ("google/flan", ""),
    ):
        config.write_text(f"run.x = 1\nrun.init_checkpoint = '{path}'\nrun.y = 2\n")
        assert find_base_model(str(tmp_path / "model.ckpt-100")) == name
        assert find_base_model(str(tmp_path)) == name
    config.unlink()
    assert find_base_model(str(tmp_path)) == ""
    with pytest.raises(UserError, match="expected a model on the hub, OWNER/NAME"):
        ModelCard("m", base_model="/models/t0_3b")
