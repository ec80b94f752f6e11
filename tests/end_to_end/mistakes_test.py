"""The mistakes that users make, by the commands: each is one message that says what to do.

`OF_RUNS` and `OF_VERBS` have the mistakes of a command line alone, `ELSEWHERE` the tests of those
that need more; the numbers are only to see that none is lost.
"""

import re
from pathlib import Path

import pytest

from t0.testing import write_templates
from tests.end_to_end.command_lines import EVALUATE, TRAIN, message

FINETUNE = "--gin_file=runs/finetune.gin"
TESTS = Path(__file__).resolve().parents[1]


def lengths(inputs="inputs", most=96):
    return f"--gin_param=run.sequence_length = {{{inputs!r}: {most}, 'targets': 32}}"


# (number, words of `t5_mesh_transformer`, what its message holds)
OF_RUNS = [
    (1, [*TRAIN, "--gin.MIXTURE_NAME='wether_train'"], ["'wether_train'", "'weather_train'"]),
    (2, ["--gin.run.modes='x'"], ["run has no parameter 'modes'", "Did you mean mode"]),
    (3, [FINETUNE, "--gin.TRAIN_STEP=5"], ["macro 'TRAIN_STEP'", "Did you mean TRAIN_STEPS?"]),
    (4, ["--modeldir=x"], ["unknown flag '--modeldir'", "'--model_dir'"]),
    (
        5,
        [FINETUNE, "--gin.MIXTURE_OR_TASK_NAME=weather_train"],
        ["Text needs a second pair of quotes: --gin.MIXTURE_OR_TASK_NAME=\"'weather_train'\""],
    ),
    (7, ["--gin_file=runs/finetun.gin"], ["not found", "Did you mean runs/finetune.gin", "Looked"]),
    (9, ["--vocab=/no/such.model"], ["vocabulary not found: /no/such.model", "SentencePiece"]),
    (10, ["--data_dir=/no/such"], ["'/no/such' (from --data_dir", "Name existing folders"]),
    (
        11,
        [*EVALUATE, "--gin_param=run.dataset_split = 'dev'"],
        ["no task of weather_eval has a split 'dev'; there are: test, train, validation"],
    ),
    (
        15,
        [*TRAIN, "--gin_param=run.mesh_shape = 'model:3'"],
        ["the mesh model:3 cannot split", "must be multiples of the mesh's"],
    ),
    (
        16,
        [*TRAIN, "--gin_param=run.batch_size = ('tokens_per_batch', 1000)"],
        ["1000 is not a multiple of 96", "960 or 1056"],
    ),
    (20, EVALUATE, ["no checkpoint (model.ckpt-STEP.index) in", "--model_dir, or a checkpoint of"]),
    (20, [*TRAIN, "--checkpoint=."], ["has no checkpoint; expected model.ckpt-STEP.index"]),
    (
        21,
        [*TRAIN, lengths("input")],
        ["unknown feature 'input'. Did you mean 'inputs'?", "(TASK_FEATURE_LENGTHS)"],
    ),
]
V3 = ["--gin_file=runs/t0_train.gin", "--gin_file=mesh/v3-512.gin"]
# (number, words of `t0`, what its message holds); $DATA is a folder with the dataset "mine".
OF_VERBS = [
    (
        17,
        ["plan", *V3, "--gin.tpu_mesh_shape.model_parallelism=12"],
        ["model_parallelism = 12 must be one of [1, 2, 4, 8"],
    ),
    (
        17,
        ["plan", *V3, "--gin.tpu_mesh_shape.tpu_topology='v3-500'"],
        ["unknown TPU topology 'v3-500'. Did you mean 'v3-512'"],
    ),
    (20, ["convert", ".", "out", "--to=hf"], ["has no checkpoint; expected model.ckpt-STEP.index"]),
    (
        23,
        ["init", "new", "$DATA/empty.csv"],
        ["empty.csv is empty: expected a first line with the"],
    ),
    (24, ["show", "--data_dir=$DATA/yaml", "x"], ["templates.yaml:3: not a template file"]),
    (
        25,
        ["show", "--data_dir=$DATA/column", "mine_which_word"],
        ["'which word' uses the column 'reprot'", "mine/train.csv does not have", "place, report"],
    ),
    (
        27,
        ["show", "super_glue_rte_guaranteed_true"],
        ["no rows for the dataset 'super_glue', subset 'rte'", "Put the rows at", "--data_dir"],
    ),
    (28, ["convert", "$PRETRAINED", "/proc/new", "--to=hf"], ["/proc"]),
    (36, ["tasks", "t0_trian"], ["unknown task or mixture 't0_trian'. Did you mean 't0_train'"]),
    (
        36,
        ["report", "/no.json", "--output=out"],
        ["/no.json does not exist. Give a results_<step>"],
    ),
]
# Mistake -> the test that holds it, in its file.
ELSEWHERE = {
    8: ("end_to_end/bad_input_test.py", "test_missing_cache_error_has_the_caching_command"),
    13: ("end_to_end/bad_input_test.py", "test_training_with_all_steps_done_is_one_line"),
    14: ("end_to_end/bad_input_test.py", "test_resume_with_another_model_is_refused"),
    19: (
        "checkpoints/checkpoint_hugging_face_test.py",
        "test_tied_embedding_unscaled_lm_head_becomes_a_copy",
    ),
    28: ("end_to_end/bad_input_test.py", "test_unwritable_model_dir_is_refused"),
    29: (
        "training/training_checkpointing_test.py",
        "test_full_disk_leaves_the_last_checkpoint_intact",
    ),
    30: ("cli/setup_test.py", "test_setup_names_an_unusable_python"),
    31: ("end_to_end/bad_input_test.py", "test_vocabulary_of_another_size_is_refused_at_the_start"),
    32: ("end_to_end/bad_input_test.py", "test_ctrl_c_saves_and_prints_how_to_resume"),
    33: ("end_to_end/eval_by_kind_test.py", "test_eval_ranks_score_eval_tasks"),
    34: (
        "end_to_end/eval_by_kind_test.py",
        "test_eval_measures_perplexity_of_tasks_without_metrics",
    ),
    35: ("end_to_end/bad_input_test.py", "test_rank_evaluation_of_hidden_labels_is_refused"),
}


@pytest.fixture(scope="module")
def data(world):
    """Datasets with a mistake each."""
    root = world.folder / "mistaken"
    root.mkdir()
    (root / "empty.csv").write_text("")
    jinja = {"yaml": "{{report}}", "column": "{{reprot}}", "name": "{{report}}"}
    for name, text in jinja.items():
        folder = root / name / "mine"
        write_templates(folder, {"which word": (f"{text} ||| {{{{place}}}}", None)})
        (folder / "train.csv").write_text("place,report\nOslo,much rain\n")
    (root / "yaml" / "mine" / "templates.yaml").write_text("templates:\n  which: [\n")
    path = root / "name" / "mine" / "templates.yaml"
    path.write_text("dataset: yours\n" + path.read_text())
    return root


@pytest.fixture(scope="module")
def verb(server, world):
    """Runs `t0`, without a hub."""

    def run(*words):
        environment = {"HF_HUB_OFFLINE": "1", **world.environment}
        return server.run(*words, program="t0", cwd=world.folder, environment=environment)

    return run


@pytest.mark.parametrize(("number", "words", "parts"), OF_RUNS)
def test_user_error_in_a_run_is_one_message(command, tmp_path, number, words, parts):
    text = message(command(f"--model_dir={tmp_path / 'model'}", *words, cwd=tmp_path))
    for part in parts:
        assert part in text


@pytest.mark.parametrize(("number", "words", "parts"), OF_VERBS)
def test_user_error_in_a_command_is_one_message(verb, data, pretrained, number, words, parts):
    given = [w.replace("$DATA", str(data)).replace("$PRETRAINED", str(pretrained)) for w in words]
    done = verb(*given)
    assert done.status == 2, done.out + done.err
    assert "Traceback" not in done.err
    assert done.err.startswith(f"t0 {words[0]}: ")
    for part in parts:
        assert part in done.err


def test_every_user_error_has_a_test():
    functions = [name for name in globals() if name.startswith("test_mistake_")]
    numbered = {int(n) for name in functions for n in re.findall(r"_(\d+)", name)}
    assert {row[0] for row in OF_RUNS + OF_VERBS} | numbered | set(ELSEWHERE) == set(range(1, 37))
    for path, name in ELSEWHERE.values():
        assert f"def {name}" in (TESTS / path).read_text(), (path, name)


def test_mistake_6_module_import_is_missing(server, tmp_path):
    words = [*TRAIN, f"--model_dir={tmp_path}"]
    text = message(server.run(*words, program="tests.end_to_end.without_tasks:main"))
    assert "--module_import=t0.seqio_tasks" in text


def test_mistake_12_checkpoint_step_missing_lists_others(command, pretrained, tmp_path):
    words = [*EVALUATE, f"--model_dir={tmp_path}", f"--checkpoint={pretrained}/model.ckpt-77"]
    assert f"{pretrained} has checkpoints of the steps: 0, 1" in message(command(*words))


def test_mistake_18_gin_file_of_another_model_size(command, server, pretrained, world, tmp_path):
    vocabulary = f"--vocab={world.folder}/vocab.model"
    words = ("convert", str(pretrained), str(tmp_path / "hf"), "--to=hf", "--drop_slots")
    assert server.run(*words, vocabulary, program="t0").status == 0
    for words in ([*TRAIN, "--gin.d_ff=128"], [*EVALUATE, "--gin.d_ff=128"]):
        named = [f"--model_dir={tmp_path / 'model'}", f"--checkpoint={tmp_path / 'hf'}"]
        text = message(command(*named, *words))
        assert "d_ff: 64 in the checkpoint, 128 in the gin files Use --gin.d_ff=64" in text
    assert not (tmp_path / "model" / "converted").exists()


def test_mistake_22_truncation_of_the_question_is_warned_of(command, tmp_path):
    words = [*TRAIN, lengths(most=5), "--gin_param=run.train_steps = 0"]
    done = command(f"--model_dir={tmp_path}", *words)
    assert done.status == 0, done.err
    said = "100.0% of inputs are longer than 5 tokens and lose the end, where the question mostly"
    assert f"WARNING: weather_which_word: {said}" in done.err


def test_mistake_26_dataset_name_differs_from_its_folder(verb, data):
    done = verb("tasks", f"--data_dir={data / 'name'}", "yours_which_word")
    assert done.status == 0, done.err
    assert "is for the dataset 'yours' because of its key 'dataset', not for 'mine'" in done.err


def test_mistake_32_ctrl_c_message_names_what_is_kept(command, pretrained, tmp_path):
    more = [lengths(), "--gin.run.batch_size=8", "--gin.get_variable_dtype.master_dtype='float32'"]
    words = [*EVALUATE, *more, f"--checkpoint={pretrained}", f"--model_dir={tmp_path}"]
    # While the model is built, TensorFlow may catch and drop the exception of a Ctrl-C.
    done = command(*words, interrupt_at="restored ")
    assert done.status == 130, done.err
    assert "interrupted: ranked tasks are saved, and the same command" in done.err


def test_t5x_gin_files_and_flags_are_accepted(command, tmp_path):
    words = ["--gin_file=t5_1_1/small.gin", "--gin_file=t5x/configs/runs/pretrain.gin"]
    words += ["--gin.MIXTURE_OR_TASK_NAME='weather_train'", "--gin.TRAIN_STEPS=3", "--dry_run"]
    done = command(f"--model_dir={tmp_path}", *words, f"--tfds_data_dir={tmp_path}")
    assert done.status == 0, done.err
    assert "models/t5.1.1.small.gin" in done.out
    assert "runs/pretrain.gin" in done.out


def test_caching_without_module_import_uses_the_catalogue(server, world, tmp_path):
    words = ["--tasks=weather_retell", f"--output_cache_dir={tmp_path}", "--splits=test"]
    words.append("--output_format=arrayrecord")
    done = server.run(*words, "--num_workers=0", program="seqio_cache_tasks")
    assert done.status == 0, done.err
    assert (tmp_path / "weather_retell" / "COMPLETED").is_file()
    assert (tmp_path / "weather_retell" / "test.tfrecord-00000-of-00001").is_file()
    assert "SeqIO 0.0.20 writes and reads no other format" in done.err
