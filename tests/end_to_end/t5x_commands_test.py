"""The commands of T5X's guides, with other paths and small sizes, run to their end.

recipe_test.py does the same with the two commands of T0.
"""

import json
import shlex
import string

import pytest

EXAMPLES = "t5x/examples/t5/t5_1_1/examples"
# The sizes of models/t5.1.1.mini.gin with one layer, and two steps of a few short sequences.
MINI = shlex.split(
    "--gin.d_model=192 --gin.d_ff=384 --gin.d_kv=32 --gin.num_heads=6 --gin.num_layers=1"
)
LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 24, 'targets': 16}"
SHORT = [*MINI, LENGTHS, "--gin.BATCH_SIZE=2", "--gin.EVAL_PERIOD=None"]

# The guide's files of users: name -> text.
FILES = {
    "my_pretraining.gin": """
        include 't5x/examples/t5/t5_1_1/small.gin'
        include 't5x/configs/runs/pretrain.gin'
        import t5.data.mixtures
        MIXTURE_OR_TASK_NAME = "c4_v220_span_corruption"
        TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 114}
        TRAIN_STEPS = 10000
        DROPOUT_RATE = 0.0
        BATCH_SIZE = 256
    """,
    "my_deterministic.gin": """
        from __gin__ import dynamic_registration
        import __main__ as train_script
        from t5x import utils
        include 't5x/examples/t5/t5_1_1/small.gin'
        include 't5x/configs/runs/pretrain.gin'
        MIXTURE_OR_TASK_NAME = "c4_v220_span_corruption"
        train/utils.DatasetConfig.seed = 42
        train_script.train.random_seed = 42
        utils.SaveCheckpointConfig.save_dataset = True
        utils.SaveCheckpointConfig:
            period = 1
        train/DatasetConfig.batch_size = 128
    """,
    "t5_1_1_base_de_en.gin": f"""
        from __gin__ import dynamic_registration
        import tasks
        include "t5x-tmp/{EXAMPLES}/t5_1_1_base_wmt_from_scratch.gin"
        MIXTURE_OR_TASK_NAME = "wmt_t2t_de_en_v003"
    """,
    "tasks.py": """
        import functools
        import os
        import seqio
        from t5.data import preprocessors
        from t5.evaluation import metrics
        vocabulary = seqio.SentencePieceVocabulary(os.environ["T0_VOCAB"], extra_ids=100)
        seqio.TaskRegistry.add(
            "wmt_t2t_de_en_v003",
            source=seqio.TfdsDataSource(tfds_name="wmt_t2t_translate/de-en:1.0.0"),
            preprocessors=[
                functools.partial(
                    preprocessors.translate, source_language="de", target_language="en"
                ),
                seqio.preprocessors.tokenize,
                seqio.CacheDatasetPlaceholder(),
                seqio.preprocessors.append_eos_after_trim,
            ],
            metric_fns=[metrics.bleu],
            output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary)),
        )
    """,
}
# Name -> (the guide's command, whose program is replaced; the folder of results and the steps).
TRAINING = {
    "pretraining": (
        "--gin_file=t5x/examples/t5/t5_1_1/c4_pretrain_small.gin"
        ' --gin.MODEL_DIR=\\"${MODEL_DIR}\\" --alsologtostderr',
        2,
    ),
    "own pretraining file": (
        '--gin_file=${PROJECT_DIR}/my_pretraining.gin --gin.MODEL_DIR=\\"${MODEL_DIR}\\"',
        2,
    ),
    "deterministic training": (
        '--gin_file=${PROJECT_DIR}/my_deterministic.gin --gin.MODEL_DIR=\\"${MODEL_DIR}\\"',
        2,
    ),
    "fine-tuning": (
        f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_finetune.gin"
        " --gin.INITIAL_CHECKPOINT_PATH=\"'${CHECKPOINT_PATH}'\""
        " --gin.MODEL_DIR=\"'${MODEL_DIR}'\"",
        4,
    ),
    "Mesh TensorFlow checkpoint": (
        f"--gin_file={EXAMPLES}/wmt19_ende_from_scratch.gin --gin.MODEL_DIR=\"'${{MODEL_DIR}}'\""
        " --gin.MIXTURE_OR_TASK_NAME=\"'wmt_t2t_ende_v003'\""
        " --gin.INIT_CHECKPOINT=\"'${CHECKPOINT_PATH}'\"",
        4,
    ),
    "own folder": (
        "--gin_search_paths=${PROJECT_DIR} --gin_file=t5_1_1_base_de_en.gin"
        " --gin.MODEL_DIR=\"'${MODEL_DIR}'\"",
        2,
    ),
}


@pytest.fixture(scope="module")
def t5x_command(command, prepared_tfds, tmp_path_factory):
    """Runs a command of T5X's guides, and returns what it printed and its folder of results."""
    project = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (project / name).write_text("\n".join(line[8:] for line in text.splitlines()))

    def run(text, *more, checkpoint=""):
        folder = tmp_path_factory.mktemp("results")
        names = dict.fromkeys(("MODEL_DIR", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR"), folder)
        filled = string.Template(text).substitute(
            names, PROJECT_DIR=project, CHECKPOINT_PATH=checkpoint
        )
        words = [*shlex.split(filled), f"--tfds_data_dir={prepared_tfds}", *more]
        done = command(*words, tasks=False, cwd=folder)
        assert done.status == 0, done.err
        return done, folder

    return run


@pytest.fixture(scope="module")
def t5x_checkpoint(t5x_command):
    words = f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_from_scratch.gin"
    words += " --gin.MODEL_DIR=\"'${MODEL_DIR}'\""
    done, folder = t5x_command(words, *SHORT, "--gin.TRAIN_STEPS=2")
    assert "training from step 0 to 2: 2 sequences" in done.out
    return folder / "model.ckpt-2"


@pytest.mark.parametrize("name", TRAINING)
def test_t5x_training_command_runs_to_its_end(t5x_command, t5x_checkpoint, name):
    words, last = TRAINING[name]
    more = [*SHORT, f"--gin.TRAIN_STEPS={last}"]
    done, folder = t5x_command(words, *more, checkpoint=t5x_checkpoint)
    assert f"trained to step {last}: {folder}/model.ckpt-{last}" in done.out
    assert f"training from step {last - 2} to {last}: 2 sequences" in done.out
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert [line["step"] for line in metrics] == [last - 1, last]
    assert "has no effect" not in done.err
    if name == "deterministic training":
        assert (folder / "model.ckpt-1.index").is_file()
        assert "RANDOM_SEED = 42" in done.operative
        assert "mesh_train_dataset_fn.seed = 42" in done.operative
        assert "skipped T5X's 'utils.SaveCheckpointConfig.save_dataset'" in done.err


def test_t5x_evaluation_command_runs_to_its_end(t5x_command, t5x_checkpoint):
    words = f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_eval.gin"
    words += " --gin.CHECKPOINT_PATH=\"'${CHECKPOINT_PATH}'\""
    words += " --gin.EVAL_OUTPUT_DIR=\"'${EVAL_OUTPUT_DIR}'\""
    more = [*MINI, "--gin.MAX_DECODE_LENGTH=4", "--gin.JSON_WRITE_N_RESULTS=1"]
    _, folder = t5x_command(words, *more, checkpoint=t5x_checkpoint)
    content = json.loads((folder / "decoded_2.json").read_text())
    assert content["run"]["split"] == "test"
    entry = content["tasks"]["wmt_t2t_ende_v003"]
    assert entry["examples"] == 2
    assert "bleu" in entry["metrics"]
    assert len((folder / entry["predictions"]).read_text().splitlines()) == 1


def test_t5x_inference_command_runs_to_its_end(t5x_command, t5x_checkpoint):
    words = f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_infer.gin"
    words += " --gin.CHECKPOINT_PATH=\"'${CHECKPOINT_PATH}'\""
    words += " --gin.INFER_OUTPUT_DIR=\"'${INFER_OUTPUT_DIR}'\""
    words += " --gin.partitioning.ModelBasedPjitPartitioner.num_partitions=8"
    words += " --gin.utils.DatasetConfig.split=\"'validation'\""
    _, folder = t5x_command(words, *MINI, LENGTHS, checkpoint=t5x_checkpoint)
    (predictions,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in predictions.open()]
    assert [row["inputs"] for row in rows] == [
        f"translate English to German: It rains {n}." for n in range(2)
    ]
