"""The commands of T5X's guides as they are printed, with paths as variables."""

import shlex

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
    "from scratch": (
        f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_from_scratch.gin"
        " --gin.MODEL_DIR=\"'${MODEL_DIR}'\"",
        2,
    ),
    "own folder": (
        "--gin_search_paths=${PROJECT_DIR} --gin_file=t5_1_1_base_de_en.gin"
        " --gin.MODEL_DIR=\"'${MODEL_DIR}'\"",
        2,
    ),
}
EVALUATION = (
    f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_eval.gin"
    " --gin.CHECKPOINT_PATH=\"'${CHECKPOINT_PATH}'\""
    " --gin.EVAL_OUTPUT_DIR=\"'${EVAL_OUTPUT_DIR}'\""
)
INFERENCE = (
    f"--gin_file={EXAMPLES}/t5_1_1_base_wmt_infer.gin"
    " --gin.CHECKPOINT_PATH=\"'${CHECKPOINT_PATH}'\""
    " --gin.INFER_OUTPUT_DIR=\"'${INFER_OUTPUT_DIR}'\""
    " --gin.partitioning.ModelBasedPjitPartitioner.num_partitions=8"
    " --gin.utils.DatasetConfig.split=\"'validation'\""
)


def file_text(name: str) -> str:
    """Returns the text of a user's file."""
    return "\n".join(line[8:] for line in FILES[name].splitlines())
