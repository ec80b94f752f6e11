"""Super-NaturalInstructions' folder: what is read of it, what is chosen, what is refused."""

import pytest

from t0.errors import UserError
from t0.sources.instructions import TEST_INSTANCES, Demonstration, choose, read_task, split_files
from tests.sources.tiny_recipes import instances, lay_out_sni, sni_task, write_sni

ENGLISH = {"languages": ("English",), "seed": 0}


def mistake(function, *args, **kwargs):
    with pytest.raises(UserError) as raised:
        function(*args, **kwargs)
    return str(raised.value)


def one_task(folder, **changes):
    return write_sni(folder, {"train": {"task1_x": sni_task(**changes)}})


def test_natural_instructions_task_is_read_as_published(tmp_path):
    task = read_task(one_task(tmp_path), "task1_x")
    assert (task.name, task.category) == ("task1_x", "Misc.")
    assert task.definition == " Say which weather it is"
    assert task.positives[0] == Demonstration("wet", "rain", "Rain is wet.")
    assert [len(task.positives), len(task.negatives), len(task.instances)] == [3, 2, 4]
    assert task.instances[1].outputs == ("rain", "shower 1")
    assert task.instances[1].id == "made-up-1"


def test_natural_instructions_older_forms_and_gzip(tmp_path):
    old = sni_task(
        Definition="One text",
        Instances=[{"input": "a", "output": "b"}],
        **{"Negative Examples": []},
    )
    write_sni(tmp_path, {"train": {"task1_x": old}}, packed={"task1_x"})
    task = read_task(tmp_path, "task1_x")
    assert task.definition == "One text"
    assert task.instances[0].outputs == ("b",)
    assert task.instances[0].id == "task1_x-0"
    assert task.negatives == ()


@pytest.mark.parametrize("place", ["splits/default", "splits"])
def test_natural_instructions_split_lists_in_either_folder(tmp_path, place):
    write_sni(tmp_path, {"train": {"task1_x": sni_task()}, "dev": {"t2": sni_task()}}, splits=place)
    assert split_files(tmp_path) == {
        "train": tmp_path / place / "train_tasks.txt",
        "validation": tmp_path / place / "dev_tasks.txt",
    }


def test_natural_instructions_instances_of_a_split(tmp_path):
    lay_out_sni(tmp_path)
    train = choose(tmp_path, "train", per_task=100, **ENGLISH).instances
    ids = [instance.id for _, instance in train]
    assert len(ids) == len(set(ids)) == 103
    assert sum(name.startswith("task1-") for name in ids) == 100
    # A draw of all 130, not the first 100, in an order that mixes the tasks.
    assert any(int(name.split("-")[1]) >= 100 for name in ids)
    places = [place for place, name in enumerate(ids) if name.startswith("task2")]
    assert places[-1] - places[0] > 10
    test = choose(tmp_path, "test", per_task=100, **ENGLISH).instances
    ids = [instance.id for _, instance in test]
    assert ids[:5] == ["task3-0", "task4-0", "task3-1", "task4-1", "task3-2"]  # in turns
    assert ids[5:] == [f"task3-{n}" for n in range(3, TEST_INSTANCES)]  # the first 100
    assert all(task.instances == () for task, _ in test)


def test_natural_instructions_instances_per_task_limit(tmp_path):
    lay_out_sni(tmp_path)
    assert len(choose(tmp_path, "train", per_task=2, **ENGLISH).instances) == 4
    assert len(choose(tmp_path, "train", per_task=None, **ENGLISH).instances) == 133
    assert len(choose(tmp_path, "test", per_task=None, **ENGLISH).instances) == 102
    assert len(choose(tmp_path, "test", per_task=1, **ENGLISH).instances) == 2


def test_natural_instructions_sampling_depends_on_seed(tmp_path):
    lay_out_sni(tmp_path)

    def ids(seed):
        chosen = choose(tmp_path, "train", per_task=10, languages=("English",), seed=seed)
        return [instance.id for _, instance in chosen.instances]

    first = ids(1)
    choose.cache_clear()
    assert ids(1) == first
    assert ids(2) != first


def test_natural_instructions_other_languages_are_left_out(tmp_path):
    tasks = {
        "here": sni_task(),
        "french": sni_task(Output_language=["French"]),
        "gone": None,
        "hindi": sni_task(Instruction_language=["Hindi"], Input_language=["English", "Hindi"]),
        "french_too": sni_task(Input_language=["French"]),
    }
    write_sni(tmp_path, {"train": tasks})
    chosen = choose(tmp_path, "train", per_task=1, **ENGLISH)
    assert {task.name for task, _ in chosen.instances} == {"here"}
    assert chosen.left_out == {
        "in French": ["french", "french_too"],
        "not in tasks/": ["gone"],
        "in Hindi": ["hindi"],
    }
    both = choose(tmp_path, "train", per_task=1, languages=("English", "French"), seed=0)
    assert {task.name for task, _ in both.instances} == {"here", "french", "french_too"}


def test_natural_instructions_no_task_left_error_message(tmp_path):
    write_sni(tmp_path, {"train": {"french": sni_task(Output_language=["French"]), "gone": None}})
    text = mistake(choose, tmp_path, "train", per_task=1, **ENGLISH)
    for part in ("train_tasks.txt", "none of its 2 tasks", "1 in French", "1 not in tasks/"):
        assert part in text
    assert "sni.languages" in text
    (tmp_path / "splits/default/train_tasks.txt").write_text("\n")
    assert "the list is empty" in mistake(choose, tmp_path, "train", per_task=1, **ENGLISH)


def test_natural_instructions_missing_split_lists_are_refused(tmp_path):
    (tmp_path / "tasks").mkdir()
    assert f"{tmp_path}/splits/default" in mistake(split_files, tmp_path)
    one_task(tmp_path)
    assert "dev_tasks.txt" in mistake(choose, tmp_path, "validation", per_task=1, **ENGLISH)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"Instances": []}, "'Instances' must be a list of instances"),
        ({"Definition": None}, "'Definition' must be"),
        ({"Categories": []}, "'Categories' must be"),
        ({"Positive Examples": [{"input": "a"}]}, "'Positive Examples' 0 must have"),
        ({"Instances": [*instances("t", 1), {"id": "t", "input": "a"}]}, "instance 1 must have"),
        ({"Instances": [{"id": "t", "input": "a", "output": []}]}, "instance 0 must have"),
        ({"Instances": [{"id": "t", "input": 3, "output": ["b"]}]}, "instance 0 must have"),
    ],
)
def test_natural_instructions_malformed_task_is_refused(tmp_path, changes, wanted):
    text = mistake(read_task, one_task(tmp_path, **changes), "task1_x")
    assert wanted in text
    assert f"{tmp_path}/tasks/task1_x.json" in text


def test_natural_instructions_unreadable_task_is_refused(tmp_path):
    folder = one_task(tmp_path)
    assert "there is no task2.json" in mistake(read_task, folder, "task2")
    (folder / "tasks" / "task1_x.json").write_text('{"Definition": ')
    assert "not JSON" in mistake(read_task, folder, "task1_x")
    (folder / "tasks" / "task1_x.json").write_text("[]")
    assert "expected a JSON object" in mistake(read_task, folder, "task1_x")
    (folder / "tasks" / "task1_x.json").unlink()
    (folder / "tasks" / "task1_x.json.gz").write_bytes(b"no gzip")
    assert "cannot be read" in mistake(read_task, folder, "task1_x")


def test_natural_instructions_real_tasks(shared_data):
    folder = shared_data / "data_recipes" / "sni"
    if not folder.is_dir():
        pytest.skip("needs copies of natural-instructions' tasks, not part of this project")
    test = choose(folder, "test", per_task=100, **ENGLISH)
    assert len(test.instances) == 500
    assert len({task.category for task, _ in test.instances}) == 5
    assert len(test.left_out["not in tasks/"]) == 114


def test_natural_instructions_list_path_outside_folder_refused(tmp_path):
    folder = tmp_path / "splits"
    folder.mkdir()
    (folder / "test_tasks.txt").write_text("../../secret\n")
    with pytest.raises(UserError, match=r"test_tasks\.txt: '\.\./\.\./secret' cannot be the name"):
        choose(tmp_path, "test", per_task=None, languages=("English",), seed=0)


def test_natural_instructions_surrogate_is_refused_or_skipped(tmp_path, monkeypatch, capsys):
    instances = [
        {"input": f"in {n}", "output": ["cut \ude00" if n == 1 else "o"]} for n in range(3)
    ]
    folder = one_task(tmp_path, Instances=instances)
    told = mistake(read_task, folder, "task1_x")
    assert "task1_x.json: instance 1: the text contains '\\ude00'" in told
    monkeypatch.setenv("T0_SKIP_BAD_ROWS", "1")
    assert [one.input for one in read_task(folder, "task1_x").instances] == ["in 0", "in 2"]
    assert "task1_x.json: skipped 1 rows" in capsys.readouterr().err
    one_task(tmp_path, Definition="cut \ud83d")
    assert "task1_x.json: 'Definition': the text contains" in mistake(read_task, folder, "task1_x")


def test_natural_instructions_lists_byte_order_mark_or_encoding(tmp_path):
    one_task(tmp_path)
    names = tmp_path / "splits/default/train_tasks.txt"
    names.write_bytes(b"\xef\xbb\xbf" + names.read_bytes())
    assert len(choose(tmp_path, "train", per_task=None, **ENGLISH).instances) == 4
    choose.cache_clear()
    names.write_bytes(b"caf\xe9\n")
    assert "train_tasks.txt: cannot be read: 'utf-8'" in mistake(
        choose, tmp_path, "train", per_task=None, **ENGLISH
    )
