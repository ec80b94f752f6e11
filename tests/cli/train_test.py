"""`t0 train`: the command that it prints is the run that it starts, and what it refuses."""

import json
import os
import shlex
import shutil
from pathlib import Path

import gin
import pytest

from t0.checkpoints import ConversionOptions, convert
from t0.cli import main as cli
from t0.cli import mesh_transformer, train
from t0.cli.verb_parser import VerbParser
from t0.config import flags, parse
from t0.config.bindings import bound
from t0.config.starter_settings import StarterSettings
from t0.run import configure, models
from t0.testing import train_vocabulary
from tests.checkpoints.tiny_checkpoints import model_shape, weights, write_mtf

RUN = ["--mixture=reviews_train", "--steps=10"]
SIZES = {"d_model": 32, "d_ff": 48, "num_heads": 2, "d_kv": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A vocabulary, and a checkpoint in the formats of Mesh TensorFlow and of Hugging Face."""
    folder = tmp_path_factory.mktemp("checkpoints")
    lines = [f"report {number} of a long day in {number % 7} words" for number in range(300)]
    train_vocabulary(folder / "v.model", lines, size=60)
    write_mtf(folder / "mtf", weights(model_shape(vocabulary=256)))
    options = ConversionOptions(tokenizer=folder / "v.model", activation="gelu")
    convert(folder / "mtf", folder / "hf", to="hf", options=options)
    return folder


@pytest.fixture
def composed(folders, tmp_path, capsys, monkeypatch):
    """Runs `t0 train` up to the run; returns (status, the words of the run, output, errors)."""
    monkeypatch.chdir(tmp_path)
    for name in ("hf", "mtf"):
        shutil.copytree(folders / name, tmp_path / name)
    monkeypatch.setitem(os.environ, "T0_VOCAB", "")
    monkeypatch.setattr(models, "choose_engine", lambda engine, device: "tensorflow")
    started = []
    monkeypatch.setattr(mesh_transformer, "main", started.append)

    def run(*words):
        started.clear()
        try:
            status = cli.main(["train", *words])
        except SystemExit as ended:
            status = ended.code
        printed = capsys.readouterr()
        return status, started[0] if started else None, printed.out, printed.err

    return run


def words_of(*words, engine="tensorflow"):
    """The composed words, without a checkpoint."""
    parser = VerbParser("train", "trains", train)
    args = parser.parse(["--checkpoint=c", "--output=out", *RUN, *words])
    return train.command_words(args, engine, "models/t5.1.1.small.gin", None)


def configured(words):
    """The configuration of a command line, as gin would print it."""
    values = flags.parse(words)
    parse.parse(values.gin_file, values.gin_param)
    text = gin.config_str()
    gin.clear_config()
    return text


def test_train_starts_the_command_that_it_prints(composed):
    status, words, printed, _ = composed(
        "--checkpoint=hf", "--output=my run", *RUN, "--lr=1e-3", "--set", "run.mode = 'train'"
    )
    assert status == 0
    head, _, command = printed.partition("\n")
    assert head == "the same run as a command of t5_mesh_transformer:"
    assert shlex.split(command.replace("\\\n", "")) == words
    assert words[0] == "t5_mesh_transformer"
    values = flags.parse(words)
    assert (values.model_dir, values.checkpoint, values.vocab) == (
        "my run",
        "hf",
        "hf/spiece.model",
    )
    assert values.finetune_steps == 10 and not values["seed"].present
    assert values.gin_file == ["my run/model.gin", "runs/finetune.gin"]
    text = Path("my run/model.gin").read_text()
    for name, size in SIZES.items():
        assert f"\n{name} = {size}\n" in text


@pytest.mark.parametrize("quoted", ["plain", "a 'b'", "a \"b\" '$c'", "x = '\\d `e`!'"])
def test_train_quotes_words_for_a_shell(quoted):
    assert shlex.split(train._quoted(quoted)) == [quoted]


def test_train_reads_a_config_file(composed, tmp_path):
    config = "checkpoint: hf\nmixture: m\nsteps: 3\nlr: 0.5\noutput: o\nset: [a.b=1, c.d=2]\n"
    (tmp_path / "run.yaml").write_text(config)
    _, from_file, *_ = composed("--config=run.yaml")
    words = ["--mixture=m", "--steps=3", "--lr=0.5", "--output=o", "--set=a.b=1", "--set=c.d=2"]
    assert from_file == composed("--checkpoint=hf", *words)[1]
    assert flags.parse(from_file).gin_param[-2:] == ["a.b=1", "c.d=2"]


def test_train_fills_in_a_starter_folder(composed, tmp_path):
    settings = StarterSettings("ours", "ours", None, {"inputs": 40, "targets": 9})
    (tmp_path / "ours" / "cache").mkdir(parents=True)
    (tmp_path / "ours" / "data").mkdir()
    (tmp_path / "ours" / "starter.json").write_text(settings.text())
    values = flags.parse(composed("--checkpoint=hf", "--output=ours/model", *RUN)[1])
    assert values.data_dir == ["ours/data"]
    assert values.additional_task_cache_dirs == ["ours/cache"]
    assert "USE_CACHED_TASKS = True" in values.gin_param
    assert "TASK_FEATURE_LENGTHS = {'inputs': 40, 'targets': 9}" in values.gin_param
    words = composed("--checkpoint=hf", "--output=ours/model", *RUN, "--lengths=targets=5")[1]
    assert "--gin_param=TASK_FEATURE_LENGTHS = {'inputs': 40, 'targets': 5}" in words


FINETUNE = [
    "t5_mesh_transformer",
    "--gin_file=models/t5.1.1.small.gin",
    "--gin_param=MIXTURE_OR_TASK_NAME = 'reviews_train'",
]
# The words of `t0 train` -> the run file and the bindings of the same run, written by hand.
SAME = [
    (
        ["--lengths=inputs=512,targets=64", "--lr=0.01", "--batch_size=16", "--dropout=0"],
        "finetune",
        [
            "TASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 64}",
            "constant_learning_rate.learning_rate = 0.01",
            "BATCH_SIZE = 16",
            "DROPOUT_RATE = 0.0",
        ],
    ),
    (
        ["--adapter=lora", "--lr=1e-3", "--eval_every=50", "--set=t0.adapter.rank = 4"],
        "lora",
        [
            "TASK_FEATURE_LENGTHS = {'inputs': 1024, 'targets': 256}",
            "t0.linear_with_warmup.peak = 0.001",
            "EVAL_PERIOD = 50",
            "t0.adapter.rank = 4",
        ],
    ),
    (
        ["--adapter=tfew", "--lengths=targets=32", "--cache_dirs=a,b", "--save_every=7"],
        "tfew",
        [
            "TASK_FEATURE_LENGTHS = {'inputs': 1024, 'targets': 32}",
            "USE_CACHED_TASKS = True",
            "run.save_checkpoints_steps = 7",
        ],
    ),
    (
        ["--adapter=ia3"],
        "tfew",
        [
            "TASK_FEATURE_LENGTHS = {'inputs': 1024, 'targets': 256}",
            "choice_losses.likelihood = 0.0",
            "choice_losses.unlikelihood = 0.0",
            "choice_losses.length_normalized = 0.0",
        ],
    ),
]


@pytest.mark.parametrize(("words", "run_file", "bindings"), SAME)
def test_train_is_the_run_of_the_gin_files(empty_gin, words, run_file, bindings):
    del empty_gin
    configure.register()
    by_hand = [f"--gin_file=runs/{run_file}.gin", *(f"--gin_param={each}" for each in bindings)]
    ours = configured(words_of(*words))
    assert ours == configured([*FINETUNE, *by_hand])
    assert ours != configured([*FINETUNE, *by_hand[:-1]])


def test_train_set_overrides_the_other_flags(empty_gin):
    del empty_gin
    configure.register()
    values = flags.parse(words_of("--batch_size=8", "--set=BATCH_SIZE=16"))
    parse.parse(values.gin_file, values.gin_param)
    assert bound("run.batch_size") == ("sequences_per_batch", 16)


def test_train_with_pytorch_has_its_flags():
    words = words_of("--adapter=lora", "--device=cpu", "--seed=0", engine="torch")
    assert {"--engine=torch", "--device=cpu", "--seed=0", "--finetune_steps=10"} < set(words)
    assert not any(word.startswith(("--engine", "--device")) for word in words_of())


HF = ["--checkpoint=hf", "--output=out"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output=out", *RUN], "the following arguments are required: --checkpoint"),
        ([*HF, "--steps=1"], "the following arguments are required: --mixture"),
        ([*HF, "--mixture=m"], "one of the arguments --steps --epochs is required"),
        ([*HF, *RUN, "--epochs=2"], "argument --epochs: not allowed with argument --steps"),
        ([*HF, *RUN, "--steps=0"], "--steps is 0; expected a whole number from 1"),
        ([*HF, *RUN, "--lr=fast"], "--lr is 'fast'; expected a number"),
        ([*HF, *RUN, "--dropout=1"], "--dropout is 1; expected a number"),
        ([*HF, *RUN, "--set=rank"], "--set=rank: expected NAME=VALUE"),
        ([*HF, *RUN, "--lengths=inputs=x"], "'inputs=x' is not a length"),
        ([*HF, *RUN, "--batchsize=3"], "unknown flag '--batchsize'. Did you mean --batch_size"),
        ([*HF, *RUN, "--adapter=lora", "--engine=tensorflow"], "only PyTorch trains adapters"),
        ([*HF[:1], "--output=gs://b/out", *RUN], "expected a local folder"),
        (["--checkpoint=nowhere", "--output=out", *RUN], "nowhere does not exist"),
    ],
)
def test_train_mistakes_are_one_line(composed, tmp_path, words, message):
    before = sorted(tmp_path.iterdir())
    status, started, _, errors = composed(*words)
    assert (status, started) == (2, None)
    assert message in errors and len(errors.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_train_into_the_folder_of_another_model_is_refused(composed, tmp_path):
    assert composed("--checkpoint=hf", "--output=out", *RUN)[0] == 0
    before = (tmp_path / "out" / "model.gin").read_bytes()
    assert composed("--checkpoint=hf", "--output=out", *RUN)[0] == 0
    status, _, _, errors = composed("--checkpoint=mtf", "--output=out", *RUN)
    assert status == 2 and "out/model.gin describes another model than mtf" in errors
    assert (tmp_path / "out" / "model.gin").read_bytes() == before


def test_train_without_pytorch_names_the_flag_that_was_typed(composed, monkeypatch):
    monkeypatch.setattr(train.importlib.util, "find_spec", lambda name: None)
    errors = composed("--checkpoint=hf", "--output=out", *RUN, "--adapter=lora")[3]
    assert "--adapter=lora needs PyTorch, which is not installed: " in errors


def test_train_writes_the_vocabulary_of_a_tokenizer_file(composed, folders):
    Path("hf/spiece.model").unlink()
    words = composed("--checkpoint=hf", "--output=out", *RUN)[1]
    assert flags.parse(words).vocab == "out/spiece.model"
    assert Path("out/spiece.model").stat().st_size > 0
    del folders


CONFIG = "checkpoint: hf\nmixture: m\nsteps: 7\noutput: out\nlengths: inputs=96,targets=32\nbatch_size: 6\n"


def planned(capsys, *words):
    gin.clear_config()
    status = cli.main(["plan", *words])
    gin.clear_config()
    return status, capsys.readouterr()


@pytest.mark.parametrize(("more", "adapter"), [("", False), ("adapter: lora\nepochs: 2\n", True)])
def test_plan_reads_the_run_of_a_config_file(composed, tmp_path, capsys, more, adapter):
    """The plan equals that of the command that `t0 train` prints."""
    config = CONFIG.replace("steps: 7\n", "") if adapter else CONFIG
    (tmp_path / "run.yaml").write_text(config + more)
    card = ["--gpu=a100-80", "--json"]
    before = sorted(tmp_path.rglob("*"))
    status, printed = planned(capsys, "--config=run.yaml", *card)
    assert status == 0 and sorted(tmp_path.rglob("*")) == before
    plan = json.loads(printed.out)
    assert plan["batch"]["sequences"] == 6
    if adapter:
        assert "the steps of --epochs depend on the data, so 1,000 steps are planned" in printed.err
        return
    words = composed("--config=run.yaml")[1][1:]
    command = [word for word in words if not word.startswith("--module_import=")]
    assert json.loads(planned(capsys, *command, "--engine=torch", *card)[1].out) == plan


def test_plan_of_config_without_a_file_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--gpu=a100-80", "--config"])
    assert "argument --config: expected one argument" in capsys.readouterr().err


def test_plan_of_a_config_file_names_wrong_keys(composed, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(CONFIG + "lrr: 1\n")
    with pytest.raises(SystemExit):
        cli.main(["plan", "--config=run.yaml"])
    assert "run.yaml: unknown key 'lrr'. Did you mean lr?" in capsys.readouterr().err
