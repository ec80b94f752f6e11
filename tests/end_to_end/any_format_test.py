"""The commands take checkpoints of other formats, and leave one, on the model of the recipe."""

import json
import shutil

import numpy as np
import pytest

from t0.checkpoints import convert
from tests.checkpoints.tiny_checkpoints import loaded
from tests.end_to_end.command_lines import EVALUATE, LENGTHS, TRAIN, message

SMALL = [f"--gin_param=run.sequence_length = {LENGTHS}", "--gin_param=run.batch_size = 8"]
SCORE = [*EVALUATE, *SMALL, "--gin_param=mesh_eval_dataset_fn.use_cached = True"]


@pytest.fixture(scope="module")
def formats(model_dir, tmp_path_factory):
    """The trained model, step 20, as the other programs would hand it on."""
    folder = tmp_path_factory.mktemp("formats")
    for kind in ("hf", "t5x"):
        convert(model_dir / "model.ckpt-20", folder / kind, to=kind)
    return folder


def run(command, *argv):
    done = command(*map(str, argv))
    assert done.status == 0, done.out + done.err
    return done


def weights_of(path):
    return {name: value for name, value in loaded(path).items() if "_slot_" not in name}


@pytest.mark.slow
def test_hugging_face_checkpoint_is_fine_tuned_and_exported(
    command, formats, model_dir, world, tmp_path
):
    folder, first, second = (tmp_path / name for name in ("model", "first", "second"))
    words = [f"--model_dir={folder}", *TRAIN, f"--checkpoint={formats / 'hf'}"]
    words.append("--finetune_steps=2")
    done = run(command, *words, f"--export_hf={first}")
    prefix = next((folder / "converted").glob("hf-*/model.ckpt-20.index")).with_suffix("")
    count = len(weights_of(model_dir / "model.ckpt-20"))
    lines = done.out.splitlines()
    assert lines[0] == f"restored {count} of {count} variables from {prefix}, step 20"
    assert lines[1].startswith("optimizer state: 0 of ")
    assert "training from step 20 to 22:" in done.out
    assert lines[-1].startswith(f"exported {folder}/model.ckpt-22 to {first}: {count} tensors")
    assert weights_of(prefix) == weights_of(model_dir / "model.ckpt-20")

    assert weights_of(first) == weights_of(folder / "model.ckpt-22")
    assert weights_of(first) != weights_of(model_dir / "model.ckpt-20")
    assert (first / "spiece.model").read_bytes() == (world.folder / "vocab.model").read_bytes()
    config = json.loads((first / "config.json").read_text())
    assert (config["feed_forward_proj"], config["dropout_rate"]) == ("gated-gelu", 0.0)
    assert "converted" not in (folder / "operative_config.gin").read_text()

    shutil.rmtree(formats / "gone", ignore_errors=True)
    words[words.index(f"--checkpoint={formats / 'hf'}")] = f"--checkpoint={formats / 'gone'}"
    done = run(command, *words, f"--export_hf={second}")
    assert done.out.startswith(f"nothing to train: {folder} is at step 22 of 22. To continue")
    assert weights_of(second) == weights_of(first)


@pytest.mark.slow
def test_t5x_checkpoint_is_trained_with_its_optimizer_state(command, formats, model_dir, tmp_path):
    initial = f"--gin_param=run.init_checkpoint = '{formats / 't5x'}'"
    done = run(command, f"--model_dir={tmp_path}", *TRAIN, initial, "--finetune_steps=1")
    slots = len(loaded(model_dir / "model.ckpt-20")) - len(weights_of(model_dir / "model.ckpt-20"))
    assert f"optimizer state: restored, {slots} of {slots} slots" in done.out
    assert "training from step 20 to 21:" in done.out


@pytest.mark.exhaustive
def test_rank_evaluation_of_every_checkpoint_format(command, formats, model_dir, scored, tmp_path):
    del scored
    name = "weather_which_word_score_eval"
    task = f"--gin_param=MIXTURE_NAME = '{name}'"
    wanted = (model_dir / "validation_eval" / "scores" / f"{name}_20.jsonl").read_text()
    for given in (formats / "hf", formats / "t5x", model_dir / "model.ckpt-20"):
        folder = tmp_path / given.name
        # The checkpoint is float32 and the configuration's default bfloat16.
        done = run(command, f"--model_dir={folder}", *SCORE, task, f"--checkpoint={given}")
        assert (folder / "converted").exists() == (given != model_dir / "model.ckpt-20")
        results = json.loads((folder / "validation_eval" / "results_20.json").read_text())
        assert results["run"]["checkpoint"] in done.out
        found = (folder / "validation_eval" / "scores" / f"{name}_20.jsonl").read_text()
        assert _likelihoods(found) == pytest.approx(_likelihoods(wanted), abs=1e-5)
    again = tmp_path / "hf"
    done = run(command, f"--model_dir={again}", *SCORE, task, f"--checkpoint={formats / 'hf'}")
    assert "converting" not in done.err


def _likelihoods(text):
    lines = map(json.loads, text.splitlines())
    return np.array([c["log_likelihood"] for line in lines for c in line["choices"]])


@pytest.mark.exhaustive
def test_t5x_checkpoint_is_decoded_and_scored(command, formats, model_dir, tmp_path):
    (tmp_path / "inputs").write_text("much rain today\nmuch snow today\n")
    (tmp_path / "targets").write_text("rain\nsnow\n")
    config = f"--gin_file={model_dir}/operative_config.gin"
    files = [f"--gin_param=inputs_filename = '{tmp_path}/inputs'"]
    files += [f"--gin_param=input_filename = '{tmp_path}/inputs'"]
    files += [f"--gin_param=targets_filename = '{tmp_path}/targets'"]
    words = [f"--model_dir={tmp_path}/model", config, f"--checkpoint={formats / 't5x'}"]
    decode = ["--gin_file=infer.gin", f"--gin_param=output_filename = '{tmp_path}/decoded'"]
    decode += ["--gin_param=Bitransformer.decode.max_decode_length = 6"]
    run(command, *words, *files, *decode)
    assert len((tmp_path / "decoded-20").read_text().splitlines()) == 2
    score = ["--gin_file=score_from_file.gin", f"--gin_param=scores_filename = '{tmp_path}/found'"]
    run(command, *words, *files, *score)
    assert len((tmp_path / "found.scores").read_text().split()) == 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([*SCORE, "--checkpoint={}/none"], ["/none does not exist"]),
        ([*TRAIN, "--export_hf={}/full"], ["/full exists and is not empty"]),
        ([*SCORE, "--export_hf={}/new"], ["--export_hf is for training", "t0 convert {}/model"]),
        (["--use_model_api", "--checkpoint=x"], ["--pretrained_model_dir"]),
    ],
)
def test_checkpoint_and_export_flag_errors_before_training(command, cached, tmp_path, words, parts):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    words = [word.replace("{}", str(tmp_path)) for word in words]
    text = message(command(f"--model_dir={tmp_path}/model", *words))
    assert all(part.replace("{}", str(tmp_path)) in text for part in parts), text
    assert not (tmp_path / "new").exists()
    assert not list((tmp_path / "model").glob("model.ckpt*"))


@pytest.mark.slow
def test_checkpoint_of_another_model_or_vocabulary_is_refused(command, formats, world, tmp_path):
    words = [f"--model_dir={tmp_path}", *TRAIN, f"--checkpoint={formats / 'hf'}"]
    text = message(command(*words, "--gin_param=d_ff = 128"))
    assert "d_ff: 64 in the checkpoint, 128 in the gin files" in text
    other = f"--vocab={world.folder / 'other.model'}"
    live = "--gin_param=mesh_train_dataset_fn.use_cached = False"
    text = message(command(*words, other, live))
    assert "trained with 256" in text


@pytest.mark.exhaustive
def test_model_api_exports_to_hugging_face(command, model_dir, tmp_path):
    run(
        command,
        *("--use_model_api", "--mode=finetune", "--mixture_or_task=weather_train"),
        *(f"--model_dir={tmp_path}/model", f"--pretrained_model_dir={model_dir}"),
        *("--input_sequence_length=96", "--target_sequence_length=32", "--batch_size=4"),
        *("--train_steps=1", f"--export_hf={tmp_path}/hf"),
    )
    assert weights_of(tmp_path / "hf") == weights_of(tmp_path / "model" / "model.ckpt-21")


@pytest.mark.exhaustive
def test_run_gin_files_take_any_checkpoint_format(command, formats, model_dir, tmp_path):
    def gin(**macros):
        return [f"--gin.{name}={value!r}" for name, value in macros.items()]

    config = f"--gin_file={model_dir}/operative_config.gin"
    evaluate = gin(MIXTURE_OR_TASK_NAME="weather_which_word", MAX_DECODE_LENGTH=3)
    evaluate += gin(CHECKPOINT_PATH=str(formats / "hf"), EVAL_OUTPUT_DIR=str(tmp_path / "eval"))
    done = run(command, "--gin_file=runs/eval.gin", config, *evaluate)
    assert "eval/weather_which_word" in done.err
    assert len((tmp_path / "eval" / "weather_which_word_20_predictions").open().readlines()) == 30

    (tmp_path / "inputs").write_text("much rain today\nmuch snow today\n")
    infer = gin(INPUT_FILE=str(tmp_path / "inputs"), INFER_OUTPUT_DIR=str(tmp_path / "infer"))
    infer += gin(CHECKPOINT_PATH=str(formats / "t5x"), TASK_FEATURE_LENGTHS=LENGTHS)
    run(command, "--gin_file=runs/infer.gin", config, *infer)
    (predictions,) = (tmp_path / "infer").glob("*.jsonl")
    assert len(predictions.read_text().splitlines()) == 2

    tune = gin(MIXTURE_OR_TASK_NAME="weather_train", TASK_FEATURE_LENGTHS=LENGTHS, BATCH_SIZE=4)
    tune += gin(MODEL_DIR=str(tmp_path / "tuned"))
    tune += [f"--checkpoint={formats / 'hf'}", "--finetune_steps=1"]
    done = run(command, "--gin_file=runs/finetune.gin", config, *tune)
    assert "training from step 20 to 21:" in done.out
    assert sorted(path.name for path in formats.iterdir()) == ["hf", "t5x"]
    assert not (formats / "hf" / "converted").exists()
