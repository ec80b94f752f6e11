"""The few-shot forms of tasks: their names and records, what results say, and what is refused."""

import pytest
import seqio
import tensorflow as tf
from seqio import experimental

from t0.catalogue.prompted_task import few_shot_name
from t0.errors import UserError
from t0.prompts import read_template_file
from t0.prompts.few_shot import UNLIMITED, FewShot, TextMeasure
from t0.tasks import PromptedTask, task_definitions
from t0.tasks.few_shot_tasks import add_few_shot_tasks, check_few_shot_tasks, few_shot_facts
from t0.tasks.vocabulary import vocabulary_measure
from t0.testing import registries_restored, write_dataset

PROMPTS = {"closed": ("{{text}}? ||| {{answer_choices[label]}}", "no ||| yes")}
ROWS = [{"text": f"Day {n}", "label": n % 2} for n in range(12)]
OTHER = seqio.TfdsDataSource("mnist:3.0.1", splits=("train",))
TASKS = ["mine_closed", "mine_closed_score_eval"]


@pytest.fixture(autouse=True)
def registered(tmp_path, monkeypatch):
    """Registers the tasks of a prompt with 12 training rows and 3 validation rows."""
    splits = {"train": ROWS, "validation": [{"text": f"Night {n}", "label": 1} for n in range(3)]}
    folder = write_dataset(tmp_path / "data" / "mine", PROMPTS, splits)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    (template,) = read_template_file(folder / "templates.yaml").templates
    mapping = {split: split for split in splits}
    task = PromptedTask("mine", None, template, mapping, {"train": 12, "validation": 3})
    with registries_restored():
        for name, arguments in task_definitions(task).items():
            seqio.TaskRegistry.add(name, **arguments)
        yield


def records(name, split="validation"):
    return [*seqio.TaskRegistry.get(name).source.records(split)]


def test_few_shot_names():
    assert few_shot_name("a_b", FewShot(k=4)) == "a_b_4shot"
    assert few_shot_name("a_b_score_eval", FewShot(k=4)) == "a_b_4shot_score_eval"
    assert few_shot_name("a_b", FewShot(k=4, suffix="opt")) == "a_b_4shot_opt"
    assert few_shot_name("a_score_eval", FewShot(k=4, suffix="opt")) == "a_4shot_opt_score_eval"


def test_both_forms_of_a_prompt_have_the_same_exemplars():
    names = add_few_shot_tasks(TASKS, FewShot(k=3), UNLIMITED)
    assert names == ["mine_closed_3shot", "mine_closed_3shot_score_eval"]
    plain, ranked = map(records, names)
    assert [row["inputs"] for row in plain] == [row["inputs"] for row in ranked]
    for number, row in enumerate(plain):
        *exemplars, own = row["inputs"].split("\n\n\n")
        assert own == f"Night {number}?\n\n"
        assert row["targets"] == "yes"
        expected = {f"{r['text']}?\n\n{('no', 'yes')[r['label']]}" for r in ROWS}
        assert len(exemplars) == 3
        assert {*exemplars} <= expected
    assert [row["inputs"] for row in records("mine_closed")] == ["Night 0?", "Night 1?", "Night 2?"]


def test_selected_rows_have_the_prompts_of_the_whole_split():
    (name,) = add_few_shot_tasks(TASKS[1:], FewShot(k=2), UNLIMITED)
    source = seqio.TaskRegistry.get(name).source
    whole = dict(source.numbered_records("train"))
    assert dict(source.numbered_records("train", [3, 7])) == {3: whole[3], 7: whole[7]}


def test_joined_text_equals_seqios():
    settings = {"inputs_prefix": "0 ", "targets_prefix": " X 1", "example_separator": " X "}
    (name,) = add_few_shot_tasks(TASKS[:1], FewShot(k=2, x_y_delimiter="", **settings), UNLIMITED)
    source = seqio.TaskRegistry.get(name).source
    for number, row in enumerate(source.open("validation").rows()):
        example = source.compiled.example(row, number)
        prompt = source.few_shot.prompt("validation", number, row, example)
        shots = {
            "inputs": [exemplar.inputs for exemplar in prompt.exemplars],
            "targets": [exemplar.targets for exemplar in prompt.exemplars],
        }
        own = {"inputs": example.inputs, "targets": example.targets}
        pair = tf.data.Dataset.from_tensors({"train": shots, "eval": own})
        (joined,) = experimental.fewshot_preprocessor(pair, **settings).as_numpy_iterator()
        assert prompt.inputs == joined["inputs"].decode()


def test_exemplars_are_left_out_until_the_input_fits(vocabulary, capsys):
    del vocabulary
    count = vocabulary_measure(1).count
    whole = records(*add_few_shot_tasks(TASKS[:1], FewShot(k=3), UNLIMITED))
    most = max(count(row["inputs"]) for row in whole) - 1
    rows = records(*add_few_shot_tasks(TASKS[:1], FewShot(k=3), vocabulary_measure(most)))
    numbers = [row["inputs"].count("\n\n\n") for row in rows]
    assert all(count(row["inputs"]) <= most for row in rows)
    for row, full in zip(rows, whole, strict=True):
        assert (row == full) == (count(full["inputs"]) <= most)
        assert full["inputs"].startswith(row["inputs"].rpartition("\n\n\n")[0])
    assert {2} <= {*numbers} <= {2, 3}
    assert f"Exemplars: 3 before {numbers.count(3)}" in capsys.readouterr().err or set(numbers) == {
        2
    }


def test_no_exemplar_that_fits_is_an_error():
    measure = TextMeasure(len, lambda inputs, answers: False)
    (name,) = add_few_shot_tasks(TASKS[:1], FewShot(k=2), measure)
    with pytest.raises(UserError, match="split 'validation': no exemplar fits before any row"):
        records(name)


def test_results_say_k_and_the_seed():
    names = add_few_shot_tasks(TASKS, FewShot(k=2, seed=5), UNLIMITED)
    assert few_shot_facts(names) == {"num_fewshot": 2, "fewshot_seed": 5}
    assert few_shot_facts(TASKS) == {}
    # A later call replaces the tasks of the same names.
    assert few_shot_facts(add_few_shot_tasks(TASKS, FewShot(k=2), UNLIMITED))["fewshot_seed"] == 0


def test_impossible_tasks_are_refused():
    seqio.TaskRegistry.add("other", source=OTHER, output_features={})
    with pytest.raises(UserError, match="task other is not made from a prompt"):
        check_few_shot_tasks(["other"], FewShot(k=2))
    seqio.TaskRegistry.add("mine_closed_2shot", source=OTHER, output_features={})
    with pytest.raises(UserError, match="mine_closed_2shot has the name of another task"):
        add_few_shot_tasks(TASKS, FewShot(k=2), UNLIMITED)
    with pytest.raises(UserError, match="13 exemplars, but its split 'train' has only 12 rows"):
        add_few_shot_tasks(TASKS, FewShot(k=13), UNLIMITED)
