import gzip
import os

import datasets
import pytest

from t0.errors import UserError
from t0.sources import find_own_datasets, open_split

TEMPLATE = """\
templates:
  1: !Template
    answer_choices: no ||| yes
    id: '1'
    jinja: '{{text}} ||| {{answer_choices[label]}}'
    metadata: !TemplateMetadata
      choices_in_prompt: false
      metrics: [Accuracy]
      original_task: true
    name: plain
    reference: ''
"""
ROW = '{"text": "x", "label": 1}\n'


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def make(folder, *files, head=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "templates.yaml").write_text(head + TEMPLATE)
    for name in files:
        data = ROW.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def names(found):
    return [(own.name, own.subset, sorted(own.splits)) for own in found]


def test_own_data_empty_folders_give_nothing(tmp_path):
    assert find_own_datasets([]) == find_own_datasets([tmp_path]) == []


def test_own_data_folder_can_be_one_dataset(tmp_path):
    folder = make(tmp_path / "reviews", "train.jsonl", "held_out.jsonl.gz")
    (own,) = find_own_datasets([folder])
    assert (own.name, own.subset, own.folder) == ("reviews", None, folder)
    assert own.splits == {"train": folder / "train.jsonl", "held_out": folder / "held_out.jsonl.gz"}
    assert own.template_file.templates[0].name == "plain"
    assert own.template_file.path == folder / "templates.yaml"


def test_own_data_folders_name_datasets_and_subsets(tmp_path):
    make(tmp_path / "a", "train.jsonl")
    make(tmp_path / "a" / "s", "test.jsonl")
    make(tmp_path / "b" / "default", "train.jsonl")
    make(tmp_path / ".hidden", "train.jsonl")
    assert names(find_own_datasets([tmp_path])) == [
        ("a", None, ["train"]),
        ("a", "s", ["test"]),
        ("b", None, ["train"]),
    ]


def test_own_data_template_keys_override_folder_names(tmp_path):
    make(tmp_path / "x" / "y", "train.jsonl", head="dataset: me/mine\nsubset: part\n")
    make(tmp_path / "x" / "z", "train.jsonl", head="dataset: other\n")
    make(tmp_path / "x" / "w", "train.jsonl", head="subset: only\n")
    assert [n[:2] for n in names(find_own_datasets([tmp_path]))] == [
        ("x", "only"),
        ("me/mine", "part"),
        ("other", None),
    ]


@pytest.mark.parametrize("head", ["", "dataset: me/mine\nsubset: part\n"])
def test_own_data_rows_are_found_in_any_data_folder(tmp_path, monkeypatch, head):
    folder = make(tmp_path / "here", "train.jsonl", head=head)
    for data_dir in (folder, tmp_path):
        monkeypatch.setenv("T0_DATA_DIR", str(data_dir))
        (own,) = find_own_datasets([data_dir])
        rows = open_split(own.name, own.subset, "train")
        assert list(rows.rows()) == [{"text": "x", "label": 1}]
        assert rows.where == str(folder / "train.jsonl")


def test_own_data_saved_dataset_next_to_templates(tmp_path):
    folder = make(tmp_path / "d")
    datasets.Dataset.from_list([{"text": "x"}]).save_to_disk(folder / "train")
    assert find_own_datasets([tmp_path])[0].splits == {"train": folder / "train"}


def test_own_data_templates_and_rows_in_different_folders(tmp_path):
    make(tmp_path / "prompts" / "d")
    (tmp_path / "data" / "d").mkdir(parents=True)
    (tmp_path / "data" / "d" / "test.csv").write_text("text,label\nx,1\n")
    (own,) = find_own_datasets([tmp_path / "prompts", tmp_path / "data"])
    assert own.splits == {"test": tmp_path / "data/d/test.csv"}


def test_own_data_templates_for_a_dataset_of_t0(tmp_path):
    make(tmp_path / "trec")
    assert find_own_datasets([tmp_path])[0].splits == {"train": None, "test": None}


def test_own_data_templates_without_rows_are_refused(tmp_path):
    folder = make(tmp_path / "d")
    with pytest.raises(UserError, match="no data for the dataset 'd'") as error:
        find_own_datasets([tmp_path])
    assert str(folder / "templates.yaml") in str(error.value)


def test_own_data_two_folders_for_one_dataset_are_refused(tmp_path):
    make(tmp_path / "a", "train.jsonl", head="dataset: d\n")
    make(tmp_path / "b", "train.jsonl", head="dataset: d\n")
    with pytest.raises(UserError, match=r"a/templates\.yaml and .*b/templates\.yaml"):
        find_own_datasets([tmp_path])


def test_own_data_malformed_template_file_is_named(tmp_path):
    (make(tmp_path / "d", "train.jsonl") / "templates.yaml").write_text("templates: [")
    with pytest.raises(UserError, match=r"d/templates\.yaml"):
        find_own_datasets([tmp_path])


def test_own_data_changed_template_file_is_read_again(tmp_path):
    folder = make(tmp_path / "d", "train.jsonl")
    assert find_own_datasets([tmp_path])[0].template_file.templates[0].name == "plain"
    path = folder / "templates.yaml"
    path.write_text(path.read_text().replace("name: plain", "name: fancy"))
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert find_own_datasets([tmp_path])[0].template_file.templates[0].name == "fancy"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("dataset: ../secret\n", "dataset"),
        ("dataset: a/b/c\n", "dataset"),
        ("dataset: /etc\n", "dataset"),
        ("dataset: d\nsubset: ../../x\n", "subset"),
    ],
)
def test_own_data_name_outside_the_data_folder_is_refused(tmp_path, head, kind):
    make(tmp_path / "d", "train.jsonl", head=head)
    with pytest.raises(UserError, match=rf"templates\.yaml: .* cannot be the name of a {kind}"):
        find_own_datasets([tmp_path])


def test_own_data_saved_split_name_outside_folder_refused(tmp_path):
    folder = make(tmp_path / "d")
    datasets.Dataset.from_list([{"text": "x"}], split="train").save_to_disk(folder)
    assert list(find_own_datasets([tmp_path])[0].splits) == ["train"]
    state = folder / "state.json"
    state.write_text(state.read_text().replace('"train"', '"../../x/train"'))
    with pytest.raises(UserError, match=r"'\.\./\.\./x/train' cannot be the name of a split"):
        find_own_datasets([tmp_path])
