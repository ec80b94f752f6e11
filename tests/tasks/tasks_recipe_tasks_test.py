"""The recipes' tasks: what SeqIO gives of them, from folders to token ids."""

import json
from pathlib import Path

import gin
import pytest
import sacrebleu
import seqio
import t5.data.tasks  # noqa: F401 (registers the tasks that ours are held against)
import tensorflow as tf
from t5.evaluation import metrics as t5_metrics

from t0.errors import UserError, original
from t0.sources.folders import SplitFile, folder_splits
from t0.sources.questions import question_splits
from t0.sources.texts import FolderTexts
from t0.tasks import default_vocabulary
from t0.tasks.instruction_tasks import (
    MIXED,
    VARIANTS,
    instruction_task,
    instruction_tasks,
    switches_of,
)
from t0.tasks.metrics import Bleu, Expected
from t0.tasks.recipe_tasks import (
    TEXT,
    RecordSource,
    TextSource,
    language_name,
    pretraining_definitions,
    question_task,
    translation_task,
)
from tests.sources import tiny_recipes

SLOW = pytest.mark.slow
LENGTHS = {"inputs": 200, "targets": 20}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_recipes.lay_out(tmp_path_factory.mktemp("recipes"))


@pytest.fixture
def bound():
    """Binds gin parameters for one test."""
    yield lambda text: gin.parse_config(text)
    gin.clear_config()


def records(task, split, *, lengths=LENGTHS, seed=1, count=None):
    dataset = task.get_dataset(lengths, split, use_cached=False, shuffle=False, seed=seed)
    return list(dataset.take(count or -1).as_numpy_iterator())


def sni(data, name="sni_def_pos_1"):
    return seqio.Task(name, **instruction_task(data / "sni", [switches_of(name)]))


def test_instruction_task_examples(data, vocabulary):
    task = sni(data)
    assert set(task.splits) == {"train", "test"}
    assert task.num_input_examples("train") == 103
    first = records(task, "test", count=2)[1]
    text = (
        "Definition: Say which weather it is.\n\n Positive Example 1 -\nInput: wet.\n"
        " Output: rain.\n\nNow complete the following example -\nInput: task4 0.\nOutput: "
    )
    encode = default_vocabulary().encode
    assert first["inputs_pretokenized"].decode() == text
    assert first["inputs"].tolist() == [*encode(text), 1]
    assert first["targets"].tolist() == [*encode("out 0"), 1]
    kept = {name: first[name].decode() for name in ("id", "task", "category")}
    assert kept == {"id": "task4-0", "task": "task4_few", "category": "Word Analogy"}
    assert first["references"].tolist() == [b"out 0", b"other 0"]
    judged = task.postprocess_fn("out 0", example=first, is_target=True)
    assert judged == Expected(("out 0", "other 0"), "task4_few", "Word Analogy")
    (metric,) = task.predict_metric_fns
    assert metric([judged], ["other 0."])["exact_match_for_word_analogy"] == 100


def test_instruction_task_truncation_of_long_inputs(data, vocabulary):
    task = sni(data)

    def first(most):
        return records(task, "test", lengths={"inputs": most, "targets": 20}, count=1)[0]

    whole = len(first(1000)["inputs"])
    fits, short, cut = first(whole), first(whole - 1), first(30)
    assert b"Positive Example 1" in fits["inputs_pretokenized"]
    assert b"Positive Example 1" not in short["inputs_pretokenized"]
    assert short["inputs_pretokenized"].endswith(b"Output: ")
    assert short["inputs"].tolist()[-1] == 1
    assert cut["inputs"].tolist() == [*short["inputs"].tolist()[:29], 1]


def test_instruction_targets_are_sampled_only_in_training(data, vocabulary):
    def targets(split, seed):
        return {
            record["id"]: record["targets_pretokenized"].decode()
            for record in records(sni(data), split, seed=seed)
        }

    first = targets("train", 1)
    assert {text.split()[0] for text in first.values()} == {"out", "other"}
    assert first == targets("train", 1)
    assert first != targets("train", 2)  # another epoch, as training counts seeds
    held_out = targets("test", 1)
    assert held_out == targets("test", 2)
    assert {text.split()[0] for text in held_out.values()} == {"out"}


def test_instruction_tasks_are_the_variants(data):
    assert instruction_tasks(data / "sni").keys() == VARIANTS.keys()


# No examples, most of them, and drawn encodings; the others lie between.
_EXTREMES = ("sni_def", "sni_pos_4", MIXED)


@pytest.mark.parametrize(
    "name", [*_EXTREMES, *(pytest.param(n, marks=SLOW) for n in VARIANTS if n not in _EXTREMES)]
)
def test_instruction_variant_makes_a_task(data, vocabulary, name):
    task = seqio.Task(name, **instruction_tasks(data / "sni")[name])
    (record,) = records(task, "train", count=1)
    assert record["inputs_pretokenized"].endswith(b"Output: ")


def test_instruction_task_gin_limits_instances_and_languages(data, vocabulary, bound):
    bound("sni.instances_per_task = 2")
    task = sni(data)
    assert task.num_input_examples("train") == task.num_input_examples("test") == 4
    bound("sni.languages = ('French',)")
    with pytest.raises(UserError, match="none of its 2 tasks can be used: 2 in English"):
        task.num_input_examples("train")


def test_instruction_task_notes(tmp_path):
    tasks = {"here": tiny_recipes.sni_task(), "gone": None, "gone_too": None}
    folder = tiny_recipes.write_sni(tmp_path, {"train": tasks})
    source = instruction_task(folder, VARIANTS["sni_def"])["source"]
    assert source.notes("train") == [
        f"{folder}, train: 4 instances of 1 tasks",
        f"{folder}, train: 2 tasks left out, not in tasks/, such as gone",
    ]


def test_instruction_task_prediction_line(data, vocabulary):
    task = sni(data)
    example = records(task, "test", count=2)[1]
    line = task.source.prediction_line(example, "rain")
    published = json.loads((data / "sni" / "tasks" / "task4_few.json").read_text())
    instance = published.pop("Instances")[0]
    assert line == {
        "id": "task4-0",
        "Task": "task4_few",
        **published,
        "Instance": instance,
        "prediction": "rain",
    }


def test_question_answering_task_examples(data, vocabulary, bound):
    task = seqio.Task("qa_toy", **question_task(question_splits(data / "qa" / "toy")))
    assert set(task.splits) == {"train", "validation"}
    assert [task.num_input_examples(split) for split in ("train", "validation")] == [3, 2]
    first, second = records(task, "validation")
    encode = default_vocabulary().encode
    assert first["inputs_pretokenized"].decode() == "Where does it rain?\nIn Oslo it rains."
    assert first["inputs"].tolist() == [*encode("Where does it rain?\nIn Oslo it rains."), 1]
    assert first["targets"].tolist() == [*encode("Oslo"), 1]
    assert second["targets"].tolist() == [1]  # no answer
    targets = [task.postprocess_fn("", example=e, is_target=True) for e in (first, second)]
    assert targets == [["Oslo", "in Oslo"], []]
    (metric,) = task.predict_metric_fns
    assert metric(targets, ["in oslo", ""])["em"] == 100
    bound(r"qa.separator = ' \\n '")
    first, _ = records(task, "validation")
    assert first["inputs_pretokenized"].decode() == r"Where does it rain? \n In Oslo it rains."


def test_question_answering_without_context(data, vocabulary):
    task = seqio.Task("qa_memory", **question_task(question_splits(data / "qa" / "memory")))
    (record,) = records(task, "validation")
    assert record["inputs_pretokenized"] == b"Where is Oslo?"
    assert record["targets_pretokenized"] == b"Norway"


def test_translation_task_examples(data, vocabulary):
    splits = folder_splits(data / "mt")
    task = seqio.Task("mt_en_de", **translation_task(splits, "en", "de"))
    assert set(task.splits) == {"train", "validation", "wmt99"}
    first, _ = records(task, "wmt99")
    assert first["inputs_pretokenized"] == b"translate English to German: It rains."
    assert first["targets_pretokenized"] == b"Es regnet."
    assert first["targets"].tolist()[-1] == 1
    assert [metric.__name__ for metric in task.predict_metric_fns] == ["bleu"]


def test_translation_language_names():
    names = ("English", "German", "Romanian", "Chinese", "Asturian")
    assert tuple(map(language_name, ("en", "de", "ro", "zh_Hans", "ast"))) == names
    with pytest.raises(UserError, match="'xx' is not a language code"):
        translation_task({"train": SplitFile("jsonl", Path("x.jsonl"))}, "en", "xx")


GERMAN = ["Es regnet heute sehr stark in Oslo.", "Der Hund – schläft „tief“."]
OTHERS = ["Es regnet sehr stark in Oslo.", "Der Hund schläft „tief“ ."]


def test_bleu_equals_sacrebleu_and_t5_with_its_signature(bound):
    found = Bleu()(GERMAN, OTHERS)
    assert 0 < found["bleu"] < 100
    assert found == t5_metrics.bleu(GERMAN, OTHERS)
    assert Bleu().signature().startswith("nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:")
    bound("bleu.tokenize = '13a'")
    other = Bleu()(GERMAN, OTHERS)["bleu"]
    assert other == sacrebleu.corpus_bleu(OTHERS, [GERMAN]).score != found["bleu"]
    assert "tok:13a" in Bleu().signature()
    assert "tok:intl" in Bleu("intl").signature()
    bound("bleu.tokenize = '13b'")
    with pytest.raises(UserError, match="unknown tokenizer '13b'. Did you mean '13a'"):
        Bleu()(GERMAN, OTHERS)


def test_user_error_passes_through_tensorflow(tmp_path, vocabulary):
    tiny_recipes.write_lines(tmp_path / "train.jsonl", [tiny_recipes.SQUAD_ROW, {"question": 1}])
    task = seqio.Task("qa_bad", **question_task(question_splits(tmp_path)))
    from t0.errors import original

    with pytest.raises(Exception, match="line 2") as raised:
        records(task, "train")
    assert isinstance(original(raised.value), UserError)


def test_record_source_splits_and_single_shard():
    source = RecordSource(
        read=lambda split: [{"text": split}], count=lambda split: 1, splits=["a"],
        signature={"text": TEXT},
    )  # fmt: skip
    assert list(source.records("a")) == [{"text": "a"}]
    assert source.list_shards("a") == ["a"]
    assert source.notes("a") == ()
    with pytest.raises(UserError, match="no split 'b'; the splits are: a"):
        list(source.records("b"))
    with pytest.raises(UserError, match="one shard"):
        source.get_dataset("a", shard_info=seqio.ShardInfo(0, 2))


COUNT = 30


@pytest.fixture
def texts(tmp_path):
    lines = [json.dumps({"text": f"the sun {number}"}) for number in range(COUNT)]
    for number, start in enumerate(range(0, COUNT, 10)):
        (tmp_path / f"train-{number}.jsonl").write_text("\n".join(lines[start : start + 10]))
    (tmp_path / "validation.txt").write_text("held out\n")
    return FolderTexts(tmp_path, shard_bytes=100)


def read(dataset):
    return [row["text"].decode() for row in dataset.as_numpy_iterator()]


def test_sharding_of_text_source_covers_the_split(texts):
    source = TextSource(texts)
    assert source.splits == ("train", "validation")
    assert source.num_input_examples("train") is None
    count = len(source.list_shards("train"))
    assert count > 6
    whole = read(source.get_dataset("train", shuffle=False))
    assert whole == [f"the sun {number}" for number in range(COUNT)]
    parts = [
        read(source.get_dataset("train", False, shard_info=seqio.ShardInfo(index, 3)))
        for index in range(3)
    ]
    assert all(parts)
    assert sorted(sum(parts, [])) == sorted(whole)
    with pytest.raises(UserError, match=f"{count} shards, but 99 were requested"):
        source.get_dataset("train", shard_info=seqio.ShardInfo(0, 99))


def test_shuffling_of_text_source_depends_on_seed(texts):
    source = TextSource(texts)
    one, same, other = (read(source.get_dataset("train", True, seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == sorted(other)


def test_text_source_error_names_file_and_line(texts):
    (texts.folder / "train-1.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    source = TextSource(FolderTexts(texts.folder))
    with pytest.raises(tf.errors.OpError) as caught:
        read(source.get_dataset("train", shuffle=False))
    assert "train-1.jsonl, line 2: has no field 'text'" in str(original(caught.value))


@SLOW
def test_span_corruption_and_lm_tasks_use_t5s_steps(texts, vocabulary):
    made = pretraining_definitions("mine", texts)
    assert list(made) == ["mine_span_corruption", "mine_prefix_lm", "mine_lm"]
    for name, published in zip(made, ("span_corruption", "prefix_lm", "full_lm"), strict=True):
        theirs = seqio.TaskRegistry.get(f"c4_v220_{published}")
        ours = seqio.Task(name, **made[name])
        assert set(ours.output_features) == set(theirs.output_features)
        assert all(f.add_eos for f in ours.output_features.values())
        steps = [(step, other) for step, other in zip(
            ours.preprocessors, theirs.preprocessors, strict=True)][1:]  # fmt: skip
        for step, other in steps:
            assert step is other or isinstance(step, seqio.CacheDatasetPlaceholder)
        example = next(iter(ours.get_dataset({"inputs": 32, "targets": 32}, "validation")))
        assert example["targets"][-1] == 1
