"""Predictions files: their names and forms; whole runs are in tests/end_to_end."""

import json

import numpy as np
import pytest
import seqio

from t0.compat import mesh_dataset, t5_metrics
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.evaluation import decoding
from t0.evaluation.decoding import NUMBER, DecodedTask, TextEvaluation, read_from
from t0.evaluation.prediction_files import READABLE, write_predictions
from t0.evaluation.results import DECODED
from t0.evaluation.text_metrics import intervals
from t0.sources.folders import SplitFile
from t0.tasks.recipe_tasks import TEXT, RecordSource, question_task, t5_features, tokenized


@pytest.fixture
def plain():
    source = RecordSource(
        read=lambda split: [], count=lambda split: 0, splits=["test"],
        signature={"inputs": TEXT, "targets": TEXT},
    )  # fmt: skip
    return seqio.Task(
        "plain", source, output_features=t5_features(), preprocessors=tokenized(), metric_fns=[]
    )


@pytest.fixture
def questions(tmp_path):
    splits = {"test": SplitFile("jsonl", tmp_path / "test.jsonl")}
    return seqio.Task("qa_x", **question_task(splits))


def question(number):
    texts = {"id": f"q{number}", "question": f"{number}?", "context": "ü" * number}
    return {name: text.encode() for name, text in texts.items()} | {"answers": [b"yes"]}


def test_predictions_file_has_a_json_line_per_example(tmp_path, plain):
    examples = [
        {"inputs_pretokenized": "Wer übt?".encode(), "targets_pretokenized": b"ich"},
        {"inputs_pretokenized": "Wo?"},
    ]
    path = write_predictions(
        str(tmp_path), plain, 7, examples=examples, predictions=[" ich\n", "da"]
    )
    assert path == f"{tmp_path}/predictions/plain_7.jsonl"
    with open(path, encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    assert found == [
        {"inputs": "Wer übt?", "prediction": " ich\n", "targets": "ich"},
        {"inputs": "Wo?", "prediction": "da"},
    ]
    assert [file.name for file in (tmp_path / "predictions").iterdir()] == ["plain_7.jsonl"]


def test_predictions_file_samples_questions_across_the_split(tmp_path, questions):
    count = 5 * READABLE // 2
    examples = [question(number) for number in range(count)]
    predictions = ["Yes. " if number % 2 else "no" for number in range(count)]
    path = write_predictions(
        str(tmp_path), questions, 7, examples=examples, predictions=predictions
    )
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    assert path.endswith("qa_x_7.json")
    assert content["metrics"] == {"em": 50.0, "f1": 50.0}
    assert list(content["predictions"].items())[:2] == [("q0", "no"), ("q1", "Yes.")]
    assert len(content["predictions"]) == count
    numbers = [int(example["id"][1:]) for example in content["examples"]]
    assert len(numbers) == READABLE
    assert numbers[0] == 0
    assert numbers[-1] >= count - 3
    example = content["examples"][1]
    assert example == {
        "id": "q2", "question": "2?", "context": "üü", "answers": ["yes"], "prediction": "no",
        "em": 0.0, "f1": 0.0,
    }  # fmt: skip


def test_predictions_file_without_questions_is_empty(tmp_path, questions):
    path = write_predictions(str(tmp_path), questions, 7, examples=[], predictions=[])
    with open(path, encoding="utf-8") as file:
        assert json.load(file) == {"metrics": {}, "predictions": {}, "examples": []}


def test_confidence_interval_of_mean_equals_standard_error():
    rng = np.random.default_rng(0)
    right = rng.random(1000) < 0.7
    targets = ["a"] * 1000
    predictions = ["a" if one else "b" for one in right]
    whole = t5_metrics.accuracy(targets, predictions)
    (low, high) = intervals(t5_metrics.accuracy, whole, targets, predictions)["accuracy"]
    assert (low + high) / 2 == pytest.approx(whole["accuracy"])
    error = 100 * np.sqrt(right.mean() * (1 - right.mean()) / 1000)
    assert 1.96 * error * 0.6 < (high - low) / 2 < 1.96 * error * 1.6
    # Too few examples, or a value that is undefined for some of them.
    assert intervals(t5_metrics.accuracy, whole, targets[:50], predictions[:50]) == {}
    assert intervals(lambda t, p: {"x": float("nan")}, {"x": 1.0}, targets, predictions) == {}


def test_confidence_interval_of_a_metric_is_never_a_point():
    targets = ["a"] * 100
    for prediction, ends in (("b", [0.0, 3.6993498]), ("a", [96.3006502, 100.0])):  # R: prop.test
        predictions = [prediction] * 100
        whole = t5_metrics.accuracy(targets, predictions)
        found = intervals(t5_metrics.accuracy, whole, targets, predictions)["accuracy"]
        assert found == pytest.approx(ends)
    # Another constant says nothing of its spread.
    assert intervals(lambda t, p: {"x": 0.5}, {"x": 0.5}, targets, targets) == {}


def share(targets, predictions):
    return {"share": 0.5, "first": Text("tea"), "by": {"length": 2.0}, "each": np.ones(2)}


def accuracy(targets, predictions):
    same = sum(t == p for t, p in zip(targets, predictions, strict=True))
    return {"accuracy": 100 * same / len(targets)}


def clash(targets, predictions):
    return {"accuracy": 7.0}


def clash_of_many(targets, predictions):
    return {"accuracy": 7.0} if len(targets) > 1 else {}


class Text:
    """As `seqio.metrics.Text`, which needs JAX to be imported."""

    def __init__(self, textdata):
        self.textdata = textdata


@pytest.fixture
def judge(tmp_path, clean_registries):
    """Judges two decoded texts; returns the folder."""
    features = {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}
    texts = ["green", "black"]

    def run(*metric_fns, name="teas"):
        seqio.TaskRegistry.add(
            "teas", source=seqio.FunctionDataSource(lambda split, shuffle_files: None, ["test"]),
            output_features=features, preprocessors=[], metric_fns=list(metric_fns),
        )  # fmt: skip
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / DECODED).write_text(json.dumps({"7": "model.ckpt-7"}))
        texts_by_number = [(1, "red"), (7, "grey"), (0, "green")]  # joined by number, not by order
        lines = "".join(
            json.dumps({"idx": number, "prediction": text}) + "\n"
            for number, text in texts_by_number
        )
        (tmp_path / "in" / f"{name}_7.jsonl").write_text(lines)

        def records():
            ids = {name: [[5]] * 2 for name in features}
            pretokenized = {f"{name}_pretokenized": texts for name in features}
            return tf.data.Dataset.from_tensor_slices(ids | pretokenized)

        dataset = mesh_dataset.EvalDataset(
            name, records, lambda text, **_: text, seqio.TaskRegistry.get("teas").metric_fns
        )
        checkpoints, decode = read_from(str(tmp_path / "in"))
        settings = TextEvaluation(str(tmp_path / "out"), {})
        decoding.evaluate([dataset], checkpoints.items(), decode, settings)
        return tmp_path / "out"

    return run


def test_dataset_whose_name_is_no_task_has_results_and_predictions(judge):
    folder = judge(accuracy, name="my questions")
    entry = json.loads((folder / "decoded_7.json").read_text())["tasks"]["my questions"]
    assert entry["metrics"] == {"accuracy": 50.0}
    assert entry["predictions"] == "predictions/my_questions_7.jsonl"
    lines = (folder / entry["predictions"]).read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == ["green", "red"]


def test_metric_values_that_are_not_numbers_are_omitted_by_name(judge, capsys):
    folder = judge(share, accuracy)
    metrics = json.loads((folder / "decoded_7.json").read_text())["tasks"]["teas"]["metrics"]
    assert metrics == {"share": 0.5, "by/length": 2.0, "accuracy": 50.0}
    lines = capsys.readouterr().out.splitlines()
    results = next(n for n, line in enumerate(lines) if line.startswith("results: "))
    assert lines[results + 1 :] == [
        "teas: metric 'first' is not a number (Text) and is left out",
        "teas: metric 'each' is not a number (ndarray) and is left out",
    ]


@pytest.mark.parametrize("other", [clash, clash_of_many])
def test_metric_name_returned_twice_is_refused(judge, tmp_path, other):
    with pytest.raises(UserError, match="accuracy and clash.* both return 'accuracy'"):
        judge(accuracy, other)
    assert not list(tmp_path.rglob("decoded_7.json"))


def decoded_folder(folder, lines):
    (folder / DECODED).write_text(json.dumps({"7": "model.ckpt-7"}))
    for task, records in lines.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{task}_7.jsonl").write_text(text)


def decoded_task(name, examples):
    return DecodedTask(mesh_dataset.EvalDataset(name, None, None, []), examples, [])


def test_decoded_texts_are_joined_by_task_and_number(tmp_path):
    records = [{"idx": n, "prediction": f"text {n}"} for n in (4, 2, 0, 1, 3)]
    others = [{"idx": n, "prediction": f"other {n}"} for n in range(3)]
    decoded_folder(tmp_path, {"teas": records, "coffees": others})
    tasks = [decoded_task("teas", [{NUMBER: 1}, {NUMBER: 3}]), decoded_task("coffees", [{}, {}])]
    _, decode = read_from(str(tmp_path))
    found = list(decode(tasks, "model.ckpt-7"))
    with pytest.raises(UserError, match="coffees_7.jsonl has no prediction with idx 3, which"):
        list(decode([decoded_task("coffees", [{}] * 4)], "model.ckpt-7"))
    assert found == ["text 1", "text 3", "other 0", "other 1"]


@pytest.mark.parametrize(
    "record", [{"prediction": "x"}, {"idx": "0", "prediction": "x"}, {"idx": 0, "prediction": "x"}]
)
def test_decoded_texts_without_a_new_number_are_refused(tmp_path, record):
    decoded_folder(tmp_path, {"teas": [{"idx": 0, "prediction": "x"}, record]})
    _, decode = read_from(str(tmp_path))
    with pytest.raises(UserError, match="teas_7.jsonl"):
        list(decode([decoded_task("teas", [{}])], "model.ckpt-7"))
