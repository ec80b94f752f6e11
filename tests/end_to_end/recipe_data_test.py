"""The recipes' data in whole commands: mode `eval` over a user's own folder, T5's own WMT task."""

import json
import re

import pytest
import sacrebleu

from t0.tasks.metrics import Expected, instruction_metrics, squad_metrics
from tests.end_to_end.command_lines import ONE_LAYER
from tests.sources import tiny_recipes

TASKS = '''
"""A task of one's own over a file beside this one, in a mixture with three recipes."""

import functools
import seqio
import t0.recipes  # registers the recipes
from t5.data import preprocessors
from t5.evaluation import metrics
from t0.tasks.recipe_tasks import t5_features, tokenized

seqio.TaskRegistry.add(
    "my_task",
    source=seqio.TextLineDataSource({"test": "rows.tsv"}),
    preprocessors=[
        functools.partial(preprocessors.parse_tsv, field_names=["inputs", "targets"]),
        *tokenized(),
    ],
    output_features=t5_features(),
    metric_fns=[metrics.accuracy, metrics.bleu],
)
seqio.MixtureRegistry.add(
    "my_mixture", ["my_task", "sni_def_pos_1", "qa_toy", "mt_en_de"], default_rate=1
)
'''
GIN = """
include 'eval.gin'

import my_tasks

MIXTURE_NAME = 'my_mixture'
eval_checkpoint_step = 1
run.dataset_split = 'test'
run.sequence_length = None
run.batch_size = 8
mesh_eval_dataset_fn.num_eval_examples = 6
mesh_eval_dataset_fn.use_cached = False
Bitransformer.decode.max_decode_length = 5
sni.instances_per_task = 50
bleu.tokenize = 'intl'
"""


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory):
    """A user's folder: data, a module of tasks, and a gin file in a folder of its own."""
    folder = tmp_path_factory.mktemp("own")
    data = tiny_recipes.lay_out(folder / "data")
    questions = [tiny_recipes.SQUAD_ROW, tiny_recipes.UNANSWERABLE_ROW]
    tiny_recipes.write_lines(data / "qa" / "toy" / "test.jsonl", questions)
    tiny_recipes.write_lines(data / "mt" / "test.jsonl", tiny_recipes.PAIRS)
    (folder / "my_tasks.py").write_text(TASKS)
    (folder / "rows.tsv").write_text("say rain\train\nsay snow\tsnow\n")
    (folder / "configs").mkdir()
    (folder / "configs" / "my_eval.gin").write_text(GIN)
    return folder


@pytest.fixture(scope="session")
def evaluated(own_folder, pretrained, command):
    """The evaluation in that folder; what it printed, and what it wrote."""
    arguments = [
        f"--model_dir={pretrained}",
        f"--gin_file={pretrained}/operative_config.gin",
        "--data_dir=data",
        "--gin_search_paths=configs",
        "--gin_file=my_eval.gin",
        "--gin_param=run.eval_summary_dir = 'found'",
    ]
    done = command(*arguments, cwd=own_folder, tasks=False)
    assert done.status == 0, done.err
    return done, own_folder / "found"


def lines(path):
    return [json.loads(line) for line in path.open(encoding="utf-8")]


@pytest.mark.slow
def test_recipe_evaluation_of_a_user_folder(evaluated):
    done, folder = evaluated
    content = json.loads((folder / "decoded_1.json").read_text())
    assert content["schema"] == 1
    assert content["run"]["step"] == 1
    assert content["run"]["checkpoint"].endswith("model.ckpt-1")
    tasks = content["tasks"]
    counts = {name: entry["examples"] for name, entry in tasks.items()}
    assert counts == {"my_task": 2, "sni_def_pos_1": 6, "qa_toy": 2, "mt_en_de": 2}
    assert f"results: {folder.name}/decoded_1.json" in done.out
    assert tasks["my_task"]["metrics"].keys() == {"accuracy", "bleu"}
    assert (folder / "my_task_1_predictions").is_file()  # Mesh TensorFlow's own
    assert "eval/sni_def_pos_1/rougeL at step 1" in done.err


def test_recipe_data_notes_come_before_the_run(evaluated):
    done, _ = evaluated
    assert "data/sni, test: 52 instances of 2 tasks" in done.err


def test_recipe_instruction_predictions_give_their_metrics(evaluated):
    _, folder = evaluated
    entry = json.loads((folder / "decoded_1.json").read_text())["tasks"]["sni_def_pos_1"]
    assert entry["predictions"] == "predictions/sni_def_pos_1_1.jsonl"
    found = lines(folder / entry["predictions"])
    assert [line["Instance"]["id"] for line in found[:3]] == ["task3-0", "task4-0", "task3-1"]
    targets = [
        Expected(tuple(line["Instance"]["output"]), line["Task"], line["Categories"][0])
        for line in found
    ]
    predictions = [line["prediction"] for line in found]
    assert instruction_metrics(targets, predictions) == entry["metrics"]
    assert {"Definition", "Positive Examples", "Instance License"} < found[0].keys()
    assert "Instances" not in found[0]


def test_recipe_squad_predictions_give_their_metrics(evaluated):
    _, folder = evaluated
    entry = json.loads((folder / "decoded_1.json").read_text())["tasks"]["qa_toy"]
    content = json.loads((folder / entry["predictions"]).read_text())
    assert entry["predictions"].endswith("qa_toy_1.json")
    assert content["metrics"] == entry["metrics"]
    answers = {"q1": ["Oslo", "in Oslo"], "q2": []}
    assert content["predictions"].keys() == answers.keys()
    predictions = list(content["predictions"].values())
    assert squad_metrics(list(answers.values()), predictions) == entry["metrics"]
    first = content["examples"][0]
    assert first["question"] == "Where does it rain?"
    assert first["context"] == "In Oslo it rains."
    assert (first["answers"], first["prediction"]) == (answers["q1"], predictions[0])
    assert {"em", "f1"} < first.keys()


def test_bleu_score_has_its_sacrebleu_signature(evaluated):
    done, folder = evaluated
    tasks = json.loads((folder / "decoded_1.json").read_text())["tasks"]
    found = lines(folder / tasks["mt_en_de"]["predictions"])
    assert found[0]["inputs"] == "translate English to German: It rains."
    assert [line["targets"] for line in found] == ["Es regnet.", "Es schneit."]
    bleu = sacrebleu.BLEU(tokenize="intl")
    score = bleu.corpus_score([one["prediction"] for one in found], [[x["targets"] for x in found]])
    assert tasks["mt_en_de"]["metrics"]["bleu"] == pytest.approx(score.score)
    signature = str(bleu.get_signature())
    assert f"mt_en_de: bleu is sacreBLEU's {signature}" in done.out
    for task in ("mt_en_de", "my_task"):  # ours, and t5's own metric
        assert tasks[task]["signatures"] == {"bleu": signature}


def test_module_import_of_unknown_module_is_refused(command, own_folder):
    done = command("--module_import=my_task", "--model_dir=m", cwd=own_folder, tasks=False)
    assert done.status == 2
    assert "unknown module 'my_task'" in done.err
    assert "and the working directory" in done.err


@pytest.mark.slow
def test_instances_of_instruction_tasks_are_counted_before_training(
    command, own_folder, pretrained, tmp_path
):
    done = command(
        *(f"--model_dir={tmp_path}", f"--gin_file={pretrained}/operative_config.gin"),
        *("--module_import=t0.recipes", "--data_dir=data"),
        *("--gin_param=MIXTURE_NAME = 'sni_def_pos_2'", "--gin_param=run.train_steps = 1"),
        *("--gin_param=mesh_train_dataset_fn.use_cached = False",),
        "--gin_param=run.sequence_length = {'inputs': 200, 'targets': 4}",
        cwd=own_folder,
        tasks=False,
    )
    assert done.status == 0, done.err
    assert "data/sni, train: 103 instances of 2 tasks" in done.err


@pytest.mark.exhaustive
def test_t5_wmt_translation_task_is_trained_and_evaluated(
    command, pretrained, prepared_tfds, tmp_path
):
    common = [
        *(f"--t5_tfds_data_dir={prepared_tfds}", f"--model_dir={tmp_path}"),
        *("--module_import=t5.data.mixtures", "--gin_param=MIXTURE_NAME = 'wmt_t2t_ende_v003'"),
        "--gin_param=run.sequence_length = {'inputs': 64, 'targets': 64}",
    ]
    done = command(
        f"--gin_file={pretrained}/operative_config.gin",
        *common,
        *("--gin_param=run.train_steps = 1", "--gin_param=run.batch_size = 2"),
        "--gin_param=mesh_train_dataset_fn.use_cached = False",
        tasks=False,
    )
    assert done.status == 0, done.err
    done = command(
        f"--gin_file={tmp_path}/operative_config.gin",
        "--gin_file=eval.gin",
        *common,
        *("--gin_param=run.dataset_split = 'validation'", "--gin_param=eval_checkpoint_step = 1"),
        "--gin_param=Bitransformer.decode.max_decode_length = 4",
        tasks=False,
    )
    assert done.status == 0, done.err
    content = json.loads((tmp_path / "validation_eval" / "decoded_1.json").read_text())
    entry = content["tasks"]["wmt_t2t_ende_v003"]
    assert entry["examples"] == 2
    assert "|tok:intl|" in entry["signatures"]["bleu"]
    found = lines(tmp_path / "validation_eval" / entry["predictions"])
    assert found[1]["inputs"] == "translate English to German: It rains 1."


@pytest.mark.exhaustive
def test_squad_run_file_trains_for_three_epochs(command, pretrained, tmp_path):
    questions = tmp_path / "data" / "qa" / "squad"
    rows = [tiny_recipes.SQUAD_ROW, tiny_recipes.UNANSWERABLE_ROW] * 10
    for split in ("train", "dev"):
        tiny_recipes.write_lines(questions / f"{split}-v2.0.json", rows)
    words = [
        *("--module_import=t0.recipes", f"--data_dir={tmp_path / 'data'}", "--epochs=3"),
        *("--gin_file=models/t5.1.1.tiny.gin", ONE_LAYER, "--gin_file=runs/squad.gin"),
        *(f"--checkpoint={pretrained}", "--gin.BATCH_SIZE=2", "--gin.EVAL_PERIOD=2"),
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
    ]
    done = command(*words, f"--model_dir={tmp_path / 'model'}", tasks=False)
    assert done.status == 0, done.err
    counted = r"--epochs=3: 20 examples at ([\d.]+) a step are (\d+) steps, from 1 to (\d+)"
    each, steps, last = map(float, re.search(counted, done.err).groups())
    assert each > 2  # questions are packed
    assert (steps, last) == (-(-60 // each), steps + 1)
    records = lines(tmp_path / "model" / "metrics.jsonl")
    assert max(record["step"] for record in records) == last
    assert f"best by validation_loss: {tmp_path / 'model'}" in done.out
    # The PyTorch engine reads this file.
    spec = tmp_path / "spec.json"
    done = command(*words, f"--model_dir={tmp_path / 'new'}", f"--save_spec={spec}", tasks=False)
    assert done.status == 0, done.err
    assert json.loads(spec.read_text())["train_steps"] == last
