"""From inputs to files: order, limits, shards, and a run that is killed and started again."""

import json

import gin
import numpy as np
import pytest

from t0.errors import UserError
from t0.inference import predictions, text_decoder
from tests.evaluation import tiny_models
from tests.inference.tiny_generation import TWO_LAYERS, ending_variables
from tests.inference.word_predictions import Backwards, Words, lines_of

LENGTHS = {"inputs": 20, "targets": 24}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_models.write_checkpoint(folder, ending_variables(), step=7)
    return folder


@pytest.fixture
def inputs(tmp_path):
    """Forty inputs of 1 to 23 words, two of which are longer than the limit."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 20, 38), 22, 23]
    lines = [" ".join(f"w{i}" for i in rng.integers(2, 120, n)) for n in lengths]
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.fixture
def backwards(monkeypatch):
    monkeypatch.setattr(Backwards, "calls", [])
    monkeypatch.setattr(Backwards, "stop_after", None)
    return Backwards


def infer(model_dir, *, lengths=LENGTHS, **settings):
    kinds = ("master", "slice", "activation")
    types = [f"get_variable_dtype.{kind}_dtype = 'float32'" for kind in kinds]
    tiny_models.bind("t5.1.1", TWO_LAYERS, *types)
    for name, value in settings.items():
        gin.bind_parameter(
            f"t0.infer.{name}", str(value) if name.endswith(("file", "dir")) else value
        )
    text_decoder.predict(
        {
            **tiny_models.MODEL,
            "vocabulary": Words(),
            "sequence_length": lengths,
            "batch_size": 4,
            "model_dir": str(model_dir),
            "eval_checkpoint_step": None,
        },
        Backwards,
    )


def test_predictions_are_written_in_input_order(model_dir, inputs, tmp_path, backwards, capsys):
    infer(model_dir, input_file=inputs, output_dir=tmp_path / "out")
    found = lines_of(tmp_path / "out" / "questions_7.jsonl")
    texts = inputs.read_text().split("\n")[:40]
    assert [line["inputs"] for line in found] == texts
    assert [line["idx"] for line in found] == list(range(40))
    for line, text in zip(found, texts, strict=True):
        assert line["prediction"].split() == text.split()[:20][::-1]
        assert set(line) == {"idx", "inputs", "prediction", "score"}
    # Batches of like length, of few shapes.
    assert len(backwards.calls) == 10
    assert {shape[1] for shape in backwards.calls} == {16, 20}
    out = capsys.readouterr().out
    assert "questions_7.jsonl: 40 predictions" in out
    assert "  inputs cut at the limit of 20 tokens: 2\n" in out


def test_prediction_resumes_after_last_batch_of_a_killed_run(
    model_dir, inputs, tmp_path, backwards, monkeypatch, capsys
):
    monkeypatch.setattr(predictions, "WINDOW", 3)  # windows of twelve inputs
    infer(model_dir, input_file=inputs, output_dir=tmp_path / "whole")
    backwards.calls.clear()
    for stop in (2, 2, 7, 9):
        backwards.stop_after = stop
        with pytest.raises(KeyboardInterrupt):
            infer(model_dir, input_file=inputs, output_dir=tmp_path / "killed")
        assert not (tmp_path / "killed" / "questions_7.jsonl").exists()
    assert len(backwards.calls) == 9
    backwards.stop_after = None
    infer(model_dir, input_file=inputs, output_dir=tmp_path / "killed")
    assert len(backwards.calls) == 10
    assert "40 predictions (36 of them before)" in capsys.readouterr().out
    for name in ("questions_7.jsonl", "questions_7.run.json"):
        whole, killed = (tmp_path / folder / name for folder in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes()
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {
        "questions_7.jsonl",
        "questions_7.run.json",
    }


def test_prediction_resume_repeats_a_half_written_batch(model_dir, inputs, tmp_path, backwards):
    backwards.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        infer(model_dir, input_file=inputs, output_dir=tmp_path)
    (last,) = tmp_path.glob("*.partial/*batch-0002.json")
    last.write_text(last.read_text()[:40])
    backwards.stop_after = None
    infer(model_dir, input_file=inputs, output_dir=tmp_path)
    assert len(lines_of(tmp_path / "questions_7.jsonl")) == 40
    assert len(backwards.calls) == 11


def test_prediction_resume_keeps_finished_predictions(
    model_dir, inputs, tmp_path, backwards, capsys
):
    infer(model_dir, input_file=inputs, output_dir=tmp_path)
    count = len(backwards.calls)
    infer(model_dir, input_file=inputs, output_dir=tmp_path)
    assert len(backwards.calls) == count
    assert "questions_7.jsonl: 40 predictions, finished before" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [None, 3], ids=["finished", "begun"])
def test_prediction_resume_with_other_settings_lists_differences(
    model_dir, inputs, tmp_path, backwards, stop
):
    backwards.stop_after = stop
    if stop:
        with pytest.raises(KeyboardInterrupt):
            infer(model_dir, input_file=inputs, output_dir=tmp_path)
    else:
        infer(model_dir, input_file=inputs, output_dir=tmp_path)
    kept = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="other settings: alpha None, now 0.6; beam_size 1, now 4"):
        infer(model_dir, input_file=inputs, output_dir=tmp_path, beam_size=4)
    inputs.write_text("w5\n")
    with pytest.raises(UserError, match="input_file_sha256"):
        infer(model_dir, input_file=inputs, output_dir=tmp_path)
    assert sorted(tmp_path.rglob("*")) == kept


def test_prediction_does_not_overwrite_an_unknown_file(model_dir, inputs, tmp_path, backwards):
    (tmp_path / "questions_7.jsonl").write_text("mine\n")
    with pytest.raises(UserError, match="without .*questions_7.run.json, which records"):
        infer(model_dir, input_file=inputs, output_dir=tmp_path)
    assert (tmp_path / "questions_7.jsonl").read_text() == "mine\n"


def test_prediction_copies_targets_to_the_output(model_dir, tmp_path, backwards):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"inputs": "w5 w6", "targets": "w6 w5"},
        {"inputs": "w7"},
        {"inputs": "", "targets": None},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    infer(model_dir, input_file=path, output_dir=tmp_path)
    found = lines_of(tmp_path / "pairs_7.jsonl")
    assert [line.get("targets") for line in found] == ["w6 w5", None, None]
    assert [line["prediction"] for line in found] == ["w6 w5", "w7", ""]


@pytest.mark.slow
def test_prediction_sharding_equals_one_run_at_any_batch_size(model_dir, inputs, tmp_path):
    # With a real model: draws and scores belong to the example.
    lengths = {"inputs": 16, "targets": 24}
    common = {"input_file": inputs, "temperature": 0.8, "top_k": 7, "lengths": lengths}
    infer(model_dir, output_dir=tmp_path / "one", batch_size=16, seed=3, **common)
    for shard in range(2):
        place = {"output_dir": tmp_path / "two", "shard_id": shard, "num_shards": 2, "seed": 3}
        infer(model_dir, batch_size=6, **place, **common)
    whole = lines_of(tmp_path / "one" / "questions_7.jsonl")
    shards = [
        lines_of(tmp_path / "two" / f"questions_7-{shard:05d}-of-00002.jsonl") for shard in range(2)
    ]
    merged = sorted(shards[0] + shards[1], key=lambda line: line["idx"])
    assert [len(shard) for shard in shards] == [20, 20]
    for one, other in zip(whole, merged, strict=True):
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=1e-3)
        assert one == other
    assert len({line["prediction"] for line in whole}) > 10


def test_prediction_reads_inputs_lazily(model_dir, inputs, tmp_path, backwards, monkeypatch):
    monkeypatch.setattr(predictions, "WINDOW", 2)  # windows of eight inputs
    read = []
    encode = Words.encode
    monkeypatch.setattr(Words, "encode", lambda self, text: read.append(text) or encode(self, text))
    ahead = []
    answer = backwards.generate

    def noting(self, *args):
        ahead.append(len(read) - 4 * len(backwards.calls))
        return answer(self, *args)

    monkeypatch.setattr(backwards, "generate", noting)
    infer(model_dir, input_file=inputs, output_dir=tmp_path)
    assert len(ahead) == 10
    assert max(ahead) <= 8
