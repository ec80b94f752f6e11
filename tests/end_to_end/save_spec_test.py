"""--save_spec: a run as plain data, whole enough for an engine that knows neither gin nor SeqIO."""

import json

import pytest

from t0.config.plain_data import to_json
from t0.config.specification import RunSpec, from_json
from tests.end_to_end.command_lines import EVALUATE, LENGTHS, ONE_LAYER, TRAIN, TWO_LAYERS, message

CACHED = "--gin_param=mesh_train_dataset_fn.use_cached = True"


@pytest.fixture
def specified(command, cached, tmp_path):
    def specified(*argv, model_dir=tmp_path / "model"):
        path = tmp_path / "spec.json"
        done = command(f"--model_dir={model_dir}", f"--save_spec={path}", *argv)
        assert done.status == 0, done.err
        assert not (tmp_path / "model").exists()
        text = path.read_text()
        spec = from_json(text, RunSpec)
        assert to_json(spec) + "\n" == text
        return spec

    return specified


def test_save_spec_of_a_training_run(specified, world):
    secret = "--gin_param=train_loop.unfilled_variables = ['https://me:pass@host/v']"
    spec = specified(*TRAIN, CACHED, "--seed=5", "--activation_dtype=float32", secret)
    assert (spec.mode, spec.train_steps, spec.batch_sequences, spec.seed) == ("train", 4, 4, 5)
    assert spec.lengths == LENGTHS
    assert spec.optimizer.selector == "mesh_tensorflow.optimize.AdafactorOptimizer"
    assert {"decay_rate", "clipping_threshold"} <= spec.optimizer.parameters.keys()
    assert spec.schedule.selector.endswith("constant_learning_rate")
    assert spec.schedule.parameters["learning_rate"] == 0.001
    assert spec.training["activation_dtype"] == "float32"
    assert spec.training["unfilled_variables"] == ["***"]
    assert spec.inputs_vocabulary.file == str(world.folder / "vocab.model")
    assert spec.data.use_cached
    for task in spec.data.tasks:
        assert task.examples > 0
        assert all(file.startswith(str(world.cache)) for file in task.cache_files)
        assert task.features["targets"].add_eos
        assert not task.features["inputs"].add_eos


def test_save_spec_has_the_numbers_of_the_model(specified):
    model = specified(*TRAIN, TWO_LAYERS).model
    assert (model.other, model.weights) == ("", "float32")
    sizes = model.t5.sizes
    assert (sizes.encoder_layers, sizes.decoder_layers) == (2, 2)
    assert (sizes.d_model, sizes.d_ff, sizes.heads, sizes.gated) == (32, 64, 2, True)
    assert (model.t5.activation, model.t5.z_loss) == ("gelu", 0.0001)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("SelfAttention.num_memory_heads = 1", "SelfAttention.num_memory_heads is 1; expected 0"),
        (
            "make_layer_stack.layer_stack_cls = @transformer.ReversibleLayerStack",
            "encoder.layer_stack is 'mesh_tensorflow.transformer.transformer.ReversibleLayerStack'; "
            "expected 'mesh_tensorflow.transformer.transformer.LayerStack'",
        ),
    ],
)
def test_save_spec_names_the_setting_by_which_a_model_is_no_t5(specified, setting, named):
    model = specified(*TRAIN, f"--gin_param={setting}").model
    assert (model.t5, model.other) == (None, named)


def test_save_spec_without_cache_lists_no_cache_files(specified):
    assert all(not task.cache_files for task in specified(*TRAIN).data.tasks)


def test_save_spec_of_a_rank_evaluation(specified, pretrained):
    checkpoint = f"--checkpoint={pretrained}/model.ckpt-1"
    spec = specified(*EVALUATE, "--gin_param=run.batch_size = 8", checkpoint)
    assert (spec.mode, spec.optimizer, spec.schedule, spec.training) == (
        "score_eval",
        None,
        None,
        {},
    )
    assert spec.data.split == "validation"
    assert [task.name for task in spec.data.tasks]


def test_save_spec_of_inference(specified, pretrained, world, tmp_path):
    lines = tmp_path / "questions.txt"
    lines.write_text("Which weather?\n")
    common = [
        *("--gin_file=models/t5.1.1.tiny.gin", ONE_LAYER, "--gin_file=runs/infer.gin"),
        f"--gin.CHECKPOINT_PATH='{pretrained}'",
        f"--gin.INFER_OUTPUT_DIR='{tmp_path}/out'",
        f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}",
        *("--gin.MIXTURE_OR_TASK_NAME='weather_train'", "--gin.BEAM_SIZE=3"),
        "--gin.MIXTURE_OR_TASK_SPLIT='validation'",
    ]
    spec = specified(*common, "--gin.USE_CACHED_TASKS=True", model_dir=pretrained)
    jobs = {job.task.name: job for job in spec.infer.jobs}
    assert set(jobs) == {"weather_which_word", "weather_own_choices"}
    job = jobs["weather_which_word"]
    assert job.path == f"{tmp_path}/out/weather_which_word_{{step}}.jsonl"
    assert (job.split, job.task.examples, len(job.task.cache_files)) == ("validation", 30, 1)
    assert (job.settings["beam_size"], job.limits["targets"]) == (3, LENGTHS["targets"])
    (job,) = specified(*common, f"--gin.INPUT_FILE='{lines}'", model_dir=pretrained).infer.jobs
    assert (job.task, job.input_file, job.repeats) == (None, str(lines), 1)
    assert job.vocabulary == str(world.folder / "vocab.model")


def test_save_spec_is_plain_json(specified, tmp_path):
    specified(*TRAIN)
    text = (tmp_path / "spec.json").read_text()
    assert " object at 0x" not in text
    assert json.loads(text)["schema"] == 2


def test_save_spec_to_missing_folder_is_refused(command, cached, tmp_path):
    done = command(f"--model_dir={tmp_path}/m", f"--save_spec={tmp_path}/no/spec.json", *TRAIN)
    assert str(tmp_path / "no") in message(done)
