"""The tasks of a prompt: names, what the source yields, counts and refuses, and the definitions."""

import functools
import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf
import yaml
from t5.data.preprocessors import rank_classification

from t0.catalogue import task_name
from t0.errors import UserError
from t0.sources import open_split
from t0.tasks import PromptedSource, PromptedTask, default_vocabulary, task_definitions
from t0.tasks.prompted_tasks import expand_choices
from tests.helpers import real_rows
from tests.tasks.moods import MOODS, ROWS


@pytest.mark.parametrize(
    ("dataset", "subset", "template", "suffix", "name"),
    [
        ("super_glue", "rte", "GPT-3 style", "", "super_glue_rte_GPT_3_style"),
        ("anli", None, "can we infer", "_r1", "anli_can_we_infer_r1"),
        ("gigaword", None, "summarize!", "", "gigaword_summarize_"),
        ("cos_e", "v1.11", "i_think", "", "cos_e_v1.11_i_think"),
        (
            "super_glue",
            "copa",
            "…As a result, C1 or C2?",
            "",
            "super_glue_copa__As_a_result_C1_or_C2_",
        ),
        ("rêves", None, "ça  va", "", "rêves_ça_va"),
    ],
)
def test_task_name_of_dataset_and_template(dataset, subset, template, suffix, name):
    assert task_name(dataset, subset, template, suffix) == name


@pytest.fixture
def source(moods):
    def build(name, **changes):
        return PromptedSource(
            **{
                "dataset": "moods",
                "subset": None,
                "template": moods[name],
                "split_mapping": {"train": "train"},
                "num_rows": {"train": len(ROWS)},
                "seed_name": "task",
                **changes,
            }
        )

    return build


def test_prompted_source_records_and_skipped_rows(source):
    one = source("open")
    records = list(one.records("train"))
    kept = [row["text"] for row in ROWS if row["label"] == 1]
    # An expression is cut at 2048 letters; a part without text is kept, and has no label.
    cut = kept[0][: 2048 - 3].rpartition(" ")[0] + "..."
    assert [record["targets"] for record in records] == [cut, "<NO LABEL>", *kept[2:]]
    assert records[0]["inputs"] == "What does B\nC say?"
    assert one.reports["train"].counts == {
        "rows": len(ROWS),
        "rendered nothing": len(ROWS) - len(kept),
        "cut at 2,048 characters": 1,
    }
    assert one.reports["train"].labels == {"no label": 1}


def test_row_report_counts_again_in_each_pass(source):
    one = source("closed", hide_labels=True)
    for _ in range(2):
        assert len(list(one.records("train"))) == len(ROWS)
        counts = {"rows": len(ROWS), "hidden label": 1, "cut at 2,048 characters": 1}
        assert one.reports["train"].counts == counts
    list(itertools.islice(one.records("train"), 2))
    assert one.reports["train"].counts["rows"] == 2


def test_missing_label_becomes_no_label_target(source):
    targets = [record["targets"] for record in source("may lack a label").records("train")]
    # The fourth row renders no inputs, and is left out.
    assert targets[:5] == ["sad", "glad", "<NO LABEL>", "sad", "glad"]


def test_hidden_label_hides_the_target_only_on_request(source):
    assert [r["targets"] for r in source("closed").records("train")][2] == "<b>both</b>"
    hiding = source("closed", hide_labels=True)
    assert [r["targets"] for r in hiding.records("train")][2] == "<NO LABEL>"


def test_prompted_source_split_mapping_and_sizes(moods, source, tmp_path):
    folder = tmp_path / "data" / "moods"
    (folder / "train.jsonl").rename(folder / "dev_r2.jsonl")
    one = source("open", split_mapping={"validation": "dev_r2"}, num_rows={"validation": 7})
    assert one.splits == ("validation",)
    assert one.num_input_examples("validation") == 7
    assert len(list(one.records("validation"))) == 12
    counted = source("open", num_rows=lambda split: {"train": 5}[split])
    assert counted.num_input_examples("train") == 5


def test_prompted_source_unknown_split_is_refused(source):
    with pytest.raises(UserError, match="no split 'test' here, it has: train"):
        source("open").open("test")


def test_prompted_source_sharding_is_refused(source):
    one = source("open")
    assert one.list_shards("train") == ["train"]
    assert not one.supports_arbitrary_sharding
    one.get_dataset("train", shard_info=seqio.ShardInfo(0, 1))
    with pytest.raises(UserError, match="one shard, but 2 were requested"):
        one.get_dataset("train", shard_info=seqio.ShardInfo(0, 2))


def test_prompted_source_missing_data_is_an_error(source):
    one = source("open", dataset="no_such_moods")
    with pytest.raises(UserError, match="no rows for the dataset 'no_such_moods'"):
        one.get_dataset("train")


def test_prompted_source_missing_column_is_named(source, tmp_path):
    (tmp_path / "data" / "moods" / "train.jsonl").write_text('{"txt": "x", "label": 0}\n')
    with pytest.raises(UserError) as raised:
        source("closed").get_dataset("train")
    text = str(raised.value)
    for part in ("'closed'", "'text'", "train.jsonl", "its columns: txt, label"):
        assert part in text


def test_prompted_source_is_lazy(source, moods):
    import dataclasses

    broken = dataclasses.replace(moods["closed"], jinja="{% if %}")
    one = source("closed", template=broken, dataset="no_such_moods")
    with pytest.raises(UserError, match="not valid Jinja"):
        _ = one.compiled.compile()


stock_templates = pytest.importorskip("promptsource.templates")

STOCK_MOODS = yaml.load(MOODS.read_text("utf-8"), Loader=yaml.FullLoader)["templates"].values()


def stock_mood(name):
    return next(template for template in STOCK_MOODS if template.name == name)


def stock_rows(template, rows):
    """Yields what the original's map and filter leave of the rows."""
    for row in rows:
        row = {name.replace("-", "_"): value for name, value in row.items()}
        parts, choices = template.apply(row), template.get_answer_choices_list(row)
        if len(parts) == 2 and parts[0]:
            record = {"inputs": parts[0], "targets": parts[1] or "<NO LABEL>"}
            yield record | ({"answer_choices": choices} if choices else {})


def stock_tasks(template, rows, vocabulary):
    """Builds the plain and the rank-evaluation task as the original does."""
    signature = {"inputs": tf.TensorSpec((), tf.string), "targets": tf.TensorSpec((), tf.string)}
    if template.answer_choices:
        signature["answer_choices"] = tf.TensorSpec((None,), tf.string)

    def dataset_fn(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_generator(
            functools.partial(stock_rows, template, rows), output_signature=signature
        )

    def build(name, *first):
        steps = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
        return seqio.Task(
            name,
            source=seqio.FunctionDataSource(dataset_fn, splits=["train"]),
            preprocessors=[*first, *steps, seqio.CacheDatasetPlaceholder(required=False)],
            output_features={
                "inputs": seqio.Feature(vocabulary, add_eos=False),
                "targets": seqio.Feature(vocabulary, add_eos=True),
            },
        )

    expand = functools.partial(
        rank_classification,
        inputs_fn=lambda ex: tf.fill((tf.size(ex["answer_choices"]),), ex["inputs"]),
        targets_fn=lambda ex: ex["answer_choices"],
        is_correct_fn=lambda ex: tf.equal(ex["answer_choices"], tf.strings.strip(ex["targets"])),
        weight_fn=lambda ex: 1.0,
    )
    return build("stock"), build("stock_score", expand) if template.answer_choices else None


def records(task, split="train", length=None):
    dataset = task.get_dataset(length, split, use_cached=False, shuffle=False)
    return list(dataset.as_numpy_iterator())


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            mine_array, other_array = np.asarray(mine[name]), np.asarray(other[name])
            assert mine_array.dtype == other_array.dtype, name
            np.testing.assert_array_equal(mine_array, other_array, err_msg=name)


@pytest.fixture
def stock_vocabulary(vocabulary):
    return seqio.SentencePieceVocabulary(str(vocabulary), 100)


@pytest.mark.parametrize("name", ["closed", "choices of the row", "open", "may lack a label"])
@pytest.mark.parametrize(
    "length",
    [pytest.param(None, marks=pytest.mark.slow, id="whole")]
    + [pytest.param({"inputs": 7, "targets": 3}, id="trimmed")],
)
def test_prompted_task_records_equal_stock_t0(name, length, mood_tasks, stock_vocabulary):
    plain, scored = mood_tasks(name)
    # A hidden label is where the rank-evaluation tasks differ, on purpose: see below.
    scored_rows = [row for row in ROWS if row["label"] >= 0]
    stock_plain, _ = stock_tasks(stock_mood(name), ROWS, stock_vocabulary)
    _, stock_scored = stock_tasks(stock_mood(name), scored_rows, stock_vocabulary)
    ours = records(plain, length=length)
    assert len(ours) > 10
    assert_same(ours, records(stock_plain, length=length))
    assert (scored is None) is (stock_scored is None) is (name == "open")
    if scored is not None:
        hidden = [index for index, row in enumerate(ROWS) if row["label"] < 0]
        ours = [r for r in records(scored, length=length) if r["idx"][0] not in hidden]
        for record in ours:
            row, choice = record["idx"]
            record["idx"] = np.array([row - sum(i < row for i in hidden), choice], np.int32)
        assert_same(ours, records(stock_scored, length=length))


def test_prompted_task_record_fields(mood_tasks, vocabulary):
    plain, scored = mood_tasks("closed")
    first = records(plain)[0]
    text = "Rain ||| all day Is this sad, glad, <b>both</b>?"
    encode = default_vocabulary().encode
    assert first["inputs_pretokenized"].decode() == text
    assert first["inputs"].tolist() == encode(text)
    assert first["targets"].tolist() == [*encode("sad"), 1]
    assert [choice.decode() for choice in first["answer_choices"]] == ["sad", "glad", "<b>both</b>"]
    assert "answer_choices" not in records(mood_tasks("open")[0])[0]
    three = records(scored)[:3]
    assert set(three[0]) == {
        *("idx", "inputs", "inputs_pretokenized", "targets", "targets_pretokenized"),
        *("is_correct", "weight"),
    }
    assert [record["idx"].tolist() for record in three] == [[0, 0], [0, 1], [0, 2]]
    assert [bool(record["is_correct"]) for record in three] == [True, False, False]
    assert [record["weight"] for record in three] == [1.0] * 3
    assert {record["inputs_pretokenized"] for record in three} == {first["inputs_pretokenized"]}
    assert three[1]["targets"].tolist() == [*encode("glad"), 1]


def test_hidden_label_has_no_correct_choice_in_rank_task(mood_tasks, vocabulary):
    plain, scored = mood_tasks("closed")
    row = records(plain)[2]
    # -1 picks the last choice in Jinja, as in Python.
    assert row["targets_pretokenized"] == b"<b>both</b>"
    hidden = [record for record in records(scored) if record["idx"][0] == 2]
    assert len(hidden) == 3
    assert not any(record["is_correct"] for record in hidden)
    counts = {"rows": 24, "hidden label": 1, "cut at 2,048 characters": 1}
    assert scored.source.reports["train"].counts == counts
    assert plain.source.reports["train"].counts["hidden label"] == 0


def test_correct_choice_equals_the_stripped_target():
    dataset = tf.data.Dataset.from_tensors(
        {"inputs": "x", "targets": " yes ", "answer_choices": ["yes", " yes", "yes ", "Yes", "yes"]}
    )
    correct = [bool(record["is_correct"]) for record in expand_choices(dataset).as_numpy_iterator()]
    assert correct == [True, False, False, False, True]


def test_random_prompt_is_the_same_in_each_run_and_task(mood_tasks, vocabulary):
    def words(task, step=1):
        texts = [record["inputs_pretokenized"].decode() for record in records(task)]
        return [text.partition(":")[0] for text in texts[::step]]

    plain, scored = mood_tasks("drawn")
    drawn = words(plain)
    assert len(drawn) == 24
    assert len(set(drawn)) > 3  # the rows differ
    assert drawn == words(plain) == words(mood_tasks("drawn")[0])
    assert drawn == words(scored, step=2)
    assert drawn != words(mood_tasks("drawn too")[0])  # and so do the tasks


def test_empty_answer_choices_are_an_open_prompt(moods):
    import dataclasses

    template = dataclasses.replace(moods["open"], answer_choices="")
    task = PromptedTask("moods", None, template, {"train": "train"}, {"train": 1})
    assert list(task_definitions(task)) == ["moods_open"]


REAL = [("super_glue", "rte"), ("super_glue", "cb"), ("hellaswag", None)]


@pytest.mark.parametrize(
    ("dataset", "subset"),
    [REAL[0], *(pytest.param(*other, marks=pytest.mark.slow) for other in REAL[1:])],
    ids=["rte", "cb", "hellaswag"],
)
def test_prompted_tasks_on_real_rows_equal_stock_t0(dataset, subset, stock_vocabulary, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(real_rows.ROWS))
    from t0.prompts import CompiledTemplate, read_template_file, template_file_path

    folder = real_rows.ROWS / dataset / (subset or "default")
    splits = {path.name.partition(".")[0] for path in folder.iterdir()} - {"train"}
    theirs = stock_templates.DatasetTemplates(dataset, subset)
    file = read_template_file(template_file_path(dataset, subset), published=True)
    templates = [t for t in file.templates if not CompiledTemplate(t).is_random]
    for template, split in itertools.product(templates[:4:3], sorted(splits)):
        rows = list(open_split(dataset, subset, split).rows(0, 6))
        task = PromptedTask(dataset, subset, template, {"train": split}, {"train": 6})
        stock_plain, stock_scored = stock_tasks(theirs[template.name], rows, stock_vocabulary)
        for (name, parts), stock in zip(
            task_definitions(task).items(), (stock_plain, stock_scored), strict=False
        ):
            ours = seqio.Task(name, **parts)
            wanted = records(stock)
            got = ours.get_dataset(None, "train", use_cached=False, shuffle=False)
            got = list(got.take(len(wanted)).as_numpy_iterator())
            # The document that rows share is an additional feature of ours.
            documents = [record.pop("document", None) for record in got]
            assert (None in documents) == (stock is stock_plain)
            if split == "test" and stock is stock_scored:
                assert not any(record.pop("is_correct") for record in got)
                for record in wanted:
                    del record["is_correct"]
            assert_same(got, wanted)
