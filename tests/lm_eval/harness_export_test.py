"""`t0 export-eval`: what the harness is given, read with a reader of our own; what is refused."""

import importlib.util
import json
import statistics

import pytest
import yaml

from t0.cli import main as cli
from t0.lm_eval import exported_tasks
from t0.testing import write_dataset
from tests.lm_eval import harness_world

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return harness_world.lay_out(tmp_path_factory.mktemp("world"))


@pytest.fixture
def export(world, capsys, monkeypatch):
    """Runs `t0 export-eval WORDS`; returns (status, output, errors)."""

    def run(tasks, *words):
        monkeypatch.delenv("T0_DATA_DIR", raising=False)
        try:
            words = [tasks, "--to=lm-eval", f"--data_dir={world / 'data'}", *words]
            status = cli.main(["export-eval", *words])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def exported(export, tmp_path):
    status, _, err = export(harness_world.TASKS, f"--output={tmp_path / 'out'}", "--group=mine")
    assert status == 0, err
    return tmp_path / "out"


class Loader(yaml.SafeLoader):
    """Reads `!function module.name` as that text."""


Loader.add_constructor("!function", lambda loader, node: f"function {node.value}")


def configs(folder):
    return {p.stem: yaml.load(p.read_text(), Loader=Loader) for p in folder.glob("*.yaml")}


def functions(folder):
    spec = importlib.util.spec_from_file_location("exported_functions", folder / "t0_prompts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(folder, name):
    return [json.loads(line) for line in (folder / "rows" / f"{name}.jsonl").open()]


def test_harness_export_tasks_for_prompts_datasets_and_group(exported):
    found = configs(exported)
    prompts = [
        "film_good_or_bad_score_eval",
        *(f"weather_{name}_score_eval" for name in ("only_rain", "own_choices", "which_word")),
    ]
    assert sorted(found) == sorted([*prompts, "film_score_eval", "weather_score_eval", "mine"])
    for name, config in found.items():
        assert config["group" if name == "mine" else "task"] == name
    for name in prompts:
        assert found[name]["dataset_kwargs"] == {"prompts": [name], "split": "validation"}
        assert found[name]["metric_list"][0]["metric"] == "acc"
        assert found[name]["tag"] == name.split("_")[0] + "_each_prompt"
    whole = found["weather_score_eval"]
    assert whole["dataset_kwargs"]["prompts"] == prompts[1:]
    assert [(m["metric"], m["aggregation"]) for m in whole["metric_list"]] == [
        ("acc", "mean"),
        ("prompt_mean", "function t0_prompts.prompt_mean"),
        ("prompt_median", "function t0_prompts.prompt_median"),
    ]
    for name in [*prompts, "weather_score_eval", "film_score_eval"]:
        assert found[name]["output_type"] == "multiple_choice"
        assert found[name]["test_split"] == "validation"
        assert found[name]["num_fewshot"] == 0
    assert found["mine"]["task"] == ["film_score_eval", "weather_score_eval"]
    assert [m["weight_by_size"] for m in found["mine"]["aggregate_metric_list"]] == [False, False]


def test_harness_export_rows_equal_rendered_examples(exported):
    (first, *_) = rows(exported, "weather_which_word_score_eval")
    assert first == {
        "idx": 0,
        "numbered_by": "row",
        "dataset": "weather",
        "prompt": "which word",
        "task": "weather_which_word_score_eval",
        "inputs": "Report: much rain by night, and then café.\nWhich weather?",
        "choices": ["rain", "snow", "wind", "heat"],
        "continuations": ["rain</s>", "snow</s>", "wind</s>", "heat</s>"],
        "gold": 0,
    }
    # The numbers are those of the dataset's rows, also if a template leaves rows out.
    assert [row["idx"] for row in rows(exported, "weather_only_rain_score_eval")] == [0, 3, 4]
    assert [row["idx"] for row in rows(exported, "weather_own_choices_score_eval")] == [
        0,
        1,
        2,
        4,
        5,
    ]
    assert [row["idx"] for row in rows(exported, "film_good_or_bad_score_eval")] == [0, 1, 2, 3]
    for name in ("weather_which_word_score_eval", "weather_own_choices_score_eval"):
        ours = harness_world.FIXTURE / "ours" / "scores" / f"{name}_0.jsonl"
        lines = [json.loads(line) for line in ours.open()]
        assert [
            (line["idx"], line["inputs"], [c["text"] for c in line["choices"]], line["gold"])
            for line in lines
            if line["gold"] >= 0
        ] == [
            (row["idx"], row["inputs"], row["choices"], row["gold"]) for row in rows(exported, name)
        ]


def test_harness_export_functions_average_over_prompts(exported):
    module, config = functions(exported), configs(exported)["weather_score_eval"]
    found = module.load(**config["metadata"], **config["dataset_kwargs"])["validation"]
    assert [(doc["idx"], doc["prompt"]) for doc in found][:4] == [
        (0, "only rain"),
        (0, "own choices"),
        (0, "which word"),
        (1, "own choices"),
    ]
    right = {
        "which word": [1, 0, 0, 1, 0, 0],
        "own choices": [1, 1, 0, 0, 0],
        "only rain": [0, 1, 0],
    }
    metrics = []
    for doc in found:
        best = doc["gold"] if right[doc["prompt"]].pop(0) else 1 - min(doc["gold"], 1)
        answers = [(-1.0 if n == best else -2.0, False) for n in range(len(doc["choices"]))]
        metrics.append(module.process_results(doc, answers))
    each = [1 / 3, 2 / 5, 2 / 6]
    assert module.prompt_mean([m["prompt_mean"] for m in metrics]) == statistics.fmean(each)
    assert module.prompt_median([m["prompt_median"] for m in metrics]) == 1 / 3
    assert sum(m["acc"] for m in metrics) == 5
    # Of equal likelihoods the first counts, as in our evaluation.
    tied = module.process_results(found[0] | {"gold": 0}, [(-1.0, False), (-1.0, False)])
    assert tied["acc"] == 1.0


def test_harness_export_summary_names_left_out_rows_and_command(export, tmp_path):
    status, out, err = export(harness_world.TASKS, f"--output={tmp_path / 'out'}")
    assert status == 0
    assert "18 rows of 4 prompts of 2 datasets, split validation" in out
    assert "--tasks t0_prompts --log_samples" in out
    assert "add_bos_token=False" in out
    assert "left out: 1 rows: without a target" in err
    assert "left out: 1 rows: no one correct choice" in err
    assert "left out: 3 rows: rendered nothing" in err


def test_harness_export_limit_and_eos_options(export, tmp_path):
    words = [f"--output={tmp_path / 'out'}", "--limit=2", "--eos="]
    status, out, err = export("weather_own_choices", *words)
    assert status == 0, err
    assert "add_bos_token" not in out
    found = rows(tmp_path / "out", "weather_own_choices_score_eval")
    assert [row["idx"] for row in found] == [0, 1]
    assert all(row["continuations"] == row["choices"] for row in found)


@pytest.mark.parametrize(
    ("tasks", "words", "told"),
    [
        ("wether_.*", (), "Did you mean 'weather"),
        ("weather_retell", (), "none of the 1 tasks of 'weather_retell' has answer choices"),
        ("weather_.*", ("--split=test",), "has answer choices and a split 'test'; splits: v"),
        ("weather_.*", ("--limit=0",), "--limit is 0; expected a whole number from 1"),
        ("weather_.*", ("--group=weather_score_eval",), "two of the harness's tasks or groups"),
        ("super_glue_cb_.*", (), "the data of 1 dataset(s) is not here: super_glue/cb, validation"),
    ],
)
def test_harness_export_mistakes_are_refused_and_leave_nothing(
    export, tmp_path, tasks, words, told
):
    status, _, err = export(tasks, f"--output={tmp_path / 'out'}", *words)
    assert status not in (0, None)
    assert told in err
    assert "Traceback" not in err
    assert not [*tmp_path.iterdir()]


def test_harness_export_output_folder_not_empty_is_refused(export, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    status, _, err = export("film_.*", f"--output={tmp_path}")
    assert status == 2
    assert "exists already: choose a new or empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_harness_export_output_in_a_bucket_is_refused(export):
    status, _, err = export("film_.*", "--output=gs://bucket/harness")
    assert status == 2
    assert "the harness reads only local folders" in err


def test_harness_export_error_after_first_prompt_leaves_nothing(export, tmp_path):
    prompts = {
        "good": ("{{text}} ||| {{answer_choices[label]}}", "bad ||| good"),
        "wrong": ("{{texts}} ||| {{answer_choices[label]}}", "bad ||| good"),
    }
    write_dataset(tmp_path / "data" / "broken", prompts, {"validation": harness_world.film_rows(2)})
    words = [f"--data_dir={tmp_path / 'data'}", f"--output={tmp_path / 'out'}"]
    status, _, err = export("broken_.*", *words)
    assert status == 2
    assert "uses the column 'texts'" in err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_harness_export_split_without_labels_is_refused(export, world, tmp_path):
    path = world / "data" / "film" / "test.jsonl"
    path.write_text('{"text": "so so", "label": -1}\n')
    try:
        status, _, err = export("film_.*", f"--output={tmp_path / 'out'}", "--split=test")
    finally:
        path.unlink()
    assert status == 2
    assert "nothing to score in split 'test'" in err
    assert not [*tmp_path.iterdir()]


def test_harness_export_anli_rounds_are_three_datasets():
    from t0.catalogue import catalogue_entries

    names = {
        exported_tasks.dataset_task(entry.task)
        for entry in catalogue_entries()
        if entry.task.dataset == "anli"
    }
    assert names == {f"anli_r{number}_score_eval" for number in (1, 2, 3)}
