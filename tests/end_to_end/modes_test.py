"""Mesh TensorFlow's other modes and T5's Model API work here, on the model of the recipe's test.

Each once crashed, or wrote b'rain' for rain, off TPU on this TensorFlow: see `t0.compat`.
"""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401 (exported models hold its operations)

from tests.end_to_end import tiny_world

INPUTS = "early much rain today in Oslo. Choose: rain, snow\nmuch snow today\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "inputs").write_text(INPUTS)
    (tmp_path / "targets").write_text("rain\nsnow\n")
    return tmp_path


@pytest.fixture
def run_mode(command, model_dir):
    def run(*argv):
        done = command(
            f"--model_dir={model_dir}", f"--gin_file={model_dir}/operative_config.gin", *argv
        )
        assert done.status == 0, done.err
        return done

    return run


def bind(**values):
    return [f"--gin_param={name.replace('__', '.')} = {value!r}" for name, value in values.items()]


def test_mode_eval_writes_predictions_and_metrics(run_mode, model_dir):
    done = run_mode(
        "--gin_file=eval.gin",
        *bind(MIXTURE_NAME="weather_train", run__dataset_split="validation", run__batch_size=16),
        *bind(mesh_eval_dataset_fn__use_cached=True, mesh_eval_dataset_fn__num_eval_examples=8),
        *bind(Bitransformer__decode__max_decode_length=6, eval_checkpoint_step=20),
    )
    notes = [line for line in done.err.splitlines() if "eval/weather" in line]
    assert len(notes) == 2  # each metric once
    folder = model_dir / "validation_eval"
    inputs = (folder / "weather_which_word_inputs").read_text()
    assert inputs.startswith("Report from ")
    assert len((folder / "weather_which_word_20_predictions").read_text().splitlines()) == 8


@pytest.mark.slow
def test_beam_search_of_eval_and_infer_is_the_same(run_mode, model_dir, tmp_path):
    lengths = {"inputs": 64, "targets": 8}
    run_mode(
        "--gin_file=runs/eval.gin",
        *bind(MIXTURE_OR_TASK_NAME="weather_which_word", CHECKPOINT_PATH=f"{model_dir}"),
        *bind(EVAL_OUTPUT_DIR=f"{tmp_path}/eval", TASK_FEATURE_LENGTHS=lengths),
        *bind(USE_CACHED_TASKS=True, BATCH_SIZE=16, MAX_DECODE_LENGTH=8),
        *bind(Bitransformer__decode__beam_size=3, Bitransformer__decode__alpha=0.8),
    )
    run_mode(
        "--gin_file=runs/infer.gin",
        *bind(MIXTURE_OR_TASK_NAME="weather_which_word", CHECKPOINT_PATH=f"{model_dir}"),
        *bind(INFER_OUTPUT_DIR=f"{tmp_path}/infer", TASK_FEATURE_LENGTHS=lengths),
        *bind(USE_CACHED_TASKS=True, BATCH_SIZE=4, BEAM_SIZE=3, ALPHA=0.8),
        *bind(MIXTURE_OR_TASK_SPLIT="validation"),
    )
    evaluated, inferred = (
        [json.loads(line)["prediction"] for line in (tmp_path / name).open()]
        for name in (
            "eval/predictions/weather_which_word_20.jsonl",
            "infer/weather_which_word_20.jsonl",
        )
    )
    assert len(evaluated) == 30
    assert evaluated == inferred


def test_mode_perplexity_eval_reports_each_task(run_mode):
    done = run_mode(
        "--gin_file=perplexity_eval.gin",
        *bind(MIXTURE_NAME="weather_train", run__dataset_split="validation"),
        *bind(mesh_eval_dataset_fn__use_cached=True, eval_checkpoint_step=20),
        *bind(run__perplexity_eval_steps=2),
    )
    logged = [float(x) for x in re.findall(r"neg_log_perplexity = (-[\d.]+)", done.err)]
    assert len(logged) == 2
    line = r"^(\S+), step 20: ([\d.]+) nats a token, perplexity ([\d.]+),"
    told = re.findall(line, done.out, re.M)
    names = {name.rpartition("_validation_")[0] for name, _, _ in told}
    assert names == {"weather_which_word", "weather_own_choices"}
    for (_, nats, perplexity), negative in zip(told, logged, strict=True):
        assert float(nats) == pytest.approx(-negative, abs=1e-3)
        assert float(perplexity) == pytest.approx(np.exp(-negative), rel=1e-3)


def test_mode_infer_writes_decoded_lines(run_mode, files):
    run_mode(
        "--gin_file=infer.gin",
        *bind(infer_checkpoint_step=20, input_filename=str(files / "inputs")),
        *bind(output_filename=str(files / "outputs"), Bitransformer__decode__max_decode_length=6),
    )
    lines = (files / "outputs-20").read_text().splitlines()
    assert len(lines) == 2
    assert not any(line.startswith("b'") for line in lines)


@pytest.mark.slow
def test_mode_score_from_strings_writes_scores(run_mode, files, scored):
    run_mode(
        "--gin_file=score_from_file.gin",
        *bind(run__eval_checkpoint_step=20, scores_filename=str(files / "found")),
        *bind(inputs_filename=str(files / "inputs"), targets_filename=str(files / "targets")),
    )
    assert len((files / "found.scores").read_text().split()) == 2
    assert (files / "found.targets").read_text() == "rain\nsnow\n"
    assert all(0 < int(length) < 9 for length in (files / "found.lengths").read_text().split())


def test_mode_score_from_task_agrees_with_rank_evaluation(run_mode, files, scored, model_dir):
    run_mode(
        "--gin_file=score_from_task.gin",
        *bind(MIXTURE_NAME="weather_which_word", run__dataset_split="validation"),
        *bind(run__eval_checkpoint_step=20, scores_filename=str(files / "found")),
    )
    targets = (files / "found.targets").read_text().split()
    assert targets == [tiny_world.WORDS[i % 4] for i in range(30)]
    found = [float(score) for score in (files / "found.scores").read_text().split()]
    path = model_dir / "validation_eval" / "scores" / "weather_which_word_score_eval_20.jsonl"
    ours = [json.loads(line) for line in path.open()]
    gold = [line["choices"][line["gold"]]["log_likelihood"] for line in ours]
    np.testing.assert_allclose(found, gold, rtol=1e-4)


@pytest.mark.parametrize(
    "mode", ["export_infer", pytest.param("export_score", marks=pytest.mark.slow)]
)
def test_mode_export_writes_a_saved_model(run_mode, tmp_path, mode):
    done = run_mode(*bind(run__mode=mode, run__export_path=str(tmp_path), run__batch_size=2))
    assert "Object was never used" not in done.err
    (folder,) = tmp_path.iterdir()
    model = tf.saved_model.load(str(folder)).signatures["serving_default"]
    texts = tf.constant(["much rain today", "much snow today"])
    if mode == "export_infer":
        outputs = model(inputs=texts)["outputs"]
        assert outputs.dtype == tf.string
        assert outputs.shape[0] == 2
    else:
        outputs = model(inputs=texts, targets=tf.constant(["rain", "snow"]))
        assert np.all(outputs["scores"].numpy() < 0)
        assert outputs["targets"].numpy().tolist() == [b"rain", b"snow"]


API = ["--use_model_api", "--input_sequence_length=96", "--target_sequence_length=32"]
API += ["--batch_size=4"]


def api(command, folder, *argv):
    done = command(*API, f"--model_dir={folder}", *argv)
    assert done.status == 0, done.err
    return done


@pytest.mark.slow
def test_model_api_predict_and_score(command, model_dir, files):
    api(
        *(command, model_dir, "--mode=predict", f"--input_file={files}/inputs"),
        f"--output_file={files}/outputs",
    )
    assert len((files / "outputs-20").read_text().splitlines()) == 2
    api(
        *(command, model_dir, "--mode=score", f"--input_file={files}/inputs"),
        *(f"--target_file={files}/targets", f"--output_file={files}/found"),
    )
    exact = [float(score) for score in (files / "found.scores").read_text().split()]
    assert len(exact) == 2
    api(
        *(command, model_dir, "--mode=score", f"--input_file={files}/inputs"),
        *(f"--target_file={files}/targets", f"--output_file={files}/found"),
        "--activation_dtype=bfloat16",
    )
    rough = [float(score) for score in (files / "found.scores").read_text().split()]
    assert rough != exact
    assert rough == pytest.approx(exact, rel=0.05)


@pytest.mark.slow
def test_model_api_eval_and_export(command, model_dir, tmp_path):
    api(
        *(command, model_dir, "--mode=eval", "--mixture_or_task=weather_which_word"),
        *("--eval_split=test", f"--eval_summary_dir={tmp_path}/new/eval"),
    )
    inputs = (tmp_path / "new" / "eval" / "weather_which_word_inputs").read_text().splitlines()
    assert len(inputs) == 8
    assert inputs[0].startswith("Report from ")
    api(command, model_dir, "--mode=export_predict", f"--export_dir={tmp_path}/exported")
    assert list((tmp_path / "exported").rglob("saved_model.pb"))


@pytest.mark.slow
def test_model_api_finetune_and_train(command, model_dir, tmp_path):
    done = api(
        *(command, tmp_path / "tuned", "--mode=finetune", "--mixture_or_task=weather_train"),
        *("--train_steps=2", f"--pretrained_model_dir={model_dir}"),
    )
    assert f"variables from {model_dir}/model.ckpt-20, step 20" in done.out
    assert "training from step 20 to 22" in done.out
    assert (tmp_path / "tuned" / "model.ckpt-22.index").exists()
    # The loop is ours: it keeps the data's position, and shows what an estimator does not.
    assert (tmp_path / "tuned" / "model.ckpt-22.resume.npz").exists()
    lines = [json.loads(line) for line in (tmp_path / "tuned" / "metrics.jsonl").open()]
    assert {"gradient_norm", "token_accuracy"} <= lines[-1].keys()
    done = api(
        *(command, tmp_path / "new", "--mode=train", "--mixture_or_task=weather_train"),
        *("--train_steps=1", "--gin_file=models/t5.1.1.tiny.gin", "--seed=3"),
    )
    assert "starting from random weights, seed 3" in done.out
    more = [f"--model_dir={tmp_path}/new", "--mixture_or_task=weather_train"]
    assert "\nstep 1/1 " in done.out
    done = command(*API, *more, "--mode=train", "--epochs=1")
    assert done.status == 2
    assert "the Model API counts --train_steps" in done.err


def test_mode_score_eval_reads_the_given_number_of_examples(run_mode, model_dir, tmp_path):
    run_mode(
        "--gin_file=score_eval.gin",
        *bind(MIXTURE_NAME="weather_eval", run__dataset_split="validation", run__batch_size=16),
        *bind(mesh_eval_dataset_fn__use_cached=True, eval_checkpoint_step=20),
        *bind(run__eval_summary_dir=str(tmp_path), t0__evaluation__examples=3),
        *bind(t0__evaluation__tasks=["weather_which_word_score_eval"]),
    )
    found = json.loads((tmp_path / "results_20.json").read_text())
    assert found["run"]["examples"] == 3
    assert found["tasks"].keys() == {"weather_which_word_score_eval"}
    scores = tmp_path / "scores" / "weather_which_word_score_eval_20.jsonl"
    assert len(scores.read_text().splitlines()) == 3


def test_mode_perplexity_eval_refuses_unread_settings(command, model_dir):
    done = command(
        f"--model_dir={model_dir}",
        f"--gin_file={model_dir}/operative_config.gin",
        "--gin_file=perplexity_eval.gin",
        *bind(MIXTURE_NAME="weather_train", run__dataset_split="validation"),
        *bind(mesh_eval_dataset_fn__use_cached=True, eval_checkpoint_step=20),
        *bind(t0__evaluation__examples=3),
    )
    assert done.status == 2
    assert "t0.evaluation.examples is 3" in done.err
