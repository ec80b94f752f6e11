"""Our tasks beside the original's construction in stock SeqIO: every field of every record.

The original: promptsource's own `Template.apply` in a `FunctionDataSource`, T5's
`rank_classification`. Its number of choices came from `len` of a tensor, which current TensorFlow
refuses; here it is `tf.size`.
"""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf
import yaml
from moods import MOODS, ROWS
from t5.data.preprocessors import rank_classification

from t0.sources import open_split
from t0.tasks import PromptedTask, default_vocabulary, task_definitions
from t0.tasks.build import expand_choices

stock_templates = pytest.importorskip("promptsource.templates")

SHARED = Path(__file__).parents[3] / "shared" / "data"
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
@pytest.mark.parametrize("length", [None, {"inputs": 7, "targets": 3}], ids=["whole", "trimmed"])
def test_records_of_both_tasks_are_stock_s(name, length, mood_tasks, stock_vocabulary):
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


def test_fields_of_the_records(mood_tasks, vocabulary):
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


def test_hidden_label_keeps_stock_s_text_in_the_plain_task_and_has_no_correct_choice(
    mood_tasks, vocabulary
):
    plain, scored = mood_tasks("closed")
    row = records(plain)[2]
    # -1 picks the last choice in Jinja, as in Python.
    assert row["targets_pretokenized"] == b"<b>both</b>"
    hidden = [record for record in records(scored) if record["idx"][0] == 2]
    assert len(hidden) == 3
    assert not any(record["is_correct"] for record in hidden)
    assert scored.source.report["train"] == {"rows": 24, "hidden label": 1}
    assert plain.source.report["train"]["hidden label"] == 0


def test_a_choice_is_compared_as_it_is_with_the_stripped_target():
    dataset = tf.data.Dataset.from_tensors(
        {"inputs": "x", "targets": " yes ", "answer_choices": ["yes", " yes", "yes ", "Yes", "yes"]}
    )
    correct = [bool(record["is_correct"]) for record in expand_choices(dataset).as_numpy_iterator()]
    assert correct == [True, False, False, False, True]


def test_a_drawn_prompt_is_the_same_in_each_run_and_in_both_tasks(mood_tasks, vocabulary):
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


def test_empty_choices_are_an_open_prompt(moods):
    import dataclasses

    template = dataclasses.replace(moods["open"], answer_choices="")
    task = PromptedTask("moods", None, template, {"train": "train"}, {"train": 1})
    assert list(task_definitions(task)) == ["moods_open"]


REAL = [("super_glue", "rte"), ("super_glue", "cb"), ("hellaswag", None)]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no copies of T0's datasets in {SHARED}")
@pytest.mark.parametrize(("dataset", "subset"), REAL, ids=["rte", "cb", "hellaswag"])
def test_real_rows(dataset, subset, stock_vocabulary, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(SHARED))
    from t0.prompts import CompiledTemplate, read_template_file, template_file_path

    folder = SHARED / dataset / (subset or "default")
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
            if split == "test" and stock is stock_scored:
                assert not any(record.pop("is_correct") for record in got)
                for record in wanted:
                    del record["is_correct"]
            assert_same(got, wanted)
