"""The command's flags, its help, and the record that it keeps of a command line."""

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from t0.config import flags as mesh_flags
from t0.config.saved_config import mask_command
from t0.errors import UserError


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("t5.models.mesh_transformer_main", 25),
        ("mesh_tensorflow.transformer.utils", 3),
        ("mesh_tensorflow.simd_mesh_impl", 2),
        # Imported with T5, so that its command has their flags as well.
        ("tensorflow.python.ops.parallel_for.pfor", 1),
        ("tensorflow.python.tpu.client.client", 2),
        ("tensorflow.python.tpu.tensor_tracer_flags", 3),
        ("tensorflow_hub.resolver", 2),
        ("tensorflow_datasets.core.community.register_path", 1),
    ],
)
def test_command_flags_include_every_flag_of_t5(module, least):
    package = module.partition(".")[0]
    root = Path(importlib.util.find_spec(package).origin).parent
    source = (root.parent / (module.replace(".", "/") + ".py")).read_text()
    stock = set(re.findall(r"flags\.DEFINE_\w+\(\s*[\"'](\w+)[\"']", source))
    assert len(stock) >= least
    assert stock <= set(mesh_flags.command_flags())


def test_command_flags_are_parsed():
    given = mesh_flags.parse(
        [
            *("t5_mesh_transformer", "--model_dir", "/m", "--gin_param=a = 1", "--gin_param=b=2"),
            *("--additional_task_cache_dirs=/x,/y", "--nofold_xy", "--verbosity=1"),
        ]
    )
    assert given.model_dir == "/m"
    assert given.gin_param == ["a = 1", "b=2"]
    assert given.gin_file is None
    assert given.module_import == ["t5.data.mixtures"]
    assert given.additional_task_cache_dirs == ["/x", "/y"]
    assert given["verbosity"].present
    assert given.verbosity == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--model_di=x", "unknown flag '--model_di'.*'--model_dir'"),
        ("--learning_rate=1", "there is no --learning_rate. .*constant_learning_rate.learning_ra"),
        ("--num-train-epochs=3", "there is no --num-train-epochs. Use --epochs=3"),
        ("--batch_size=many", "--batch_size=many.*invalid literal"),
        ("--mode=trian", "--mode=trian.*one of <train|"),
        ("words", "unexpected argument 'words'"),
    ],
)
def test_command_flags_unknown_or_invalid_are_refused(argument, message):
    with pytest.raises(UserError, match=message):
        mesh_flags.parse(["t5_mesh_transformer", argument])


def test_help_imports_no_heavy_package():
    code = (
        "import sys\n"
        "from t0.cli.mesh_transformer import main\n"
        "main(['t5_mesh_transformer', '--help'])\n"
        "print([name for name in ('tensorflow', 'gin', 'seqio', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *text, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    shown = {line.split(":")[0].strip() for line in text if line.lstrip().startswith("--")}
    names = {f"--{name}" for name in mesh_flags.command_flags()}
    assert {name.replace("[no]", "") for name in shown} >= names - {"--help"}


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("--hf_token=abc", "--hf_token=***"),
        ("--gin_param=wandb.api_key = 'abc'", "--gin_param=wandb.api_key = ***"),
        ("--gin_param=my_password='abc def'", "--gin_param=my_password=***"),
        ("--model_dir=s3://me:abc@host/m", "--model_dir=s3://***@host/m"),
        ("--gin_param=tokens_per_batch=1048576", "--gin_param=tokens_per_batch=1048576"),
        ("--gin_param=tokenizer = 'x'", "--gin_param=tokenizer = 'x'"),
    ],
)
def test_secrets_are_masked_in_the_command_record(word, recorded):
    assert shlex.split(mask_command(["run", word, "--tpu=t"])) == ["run", recorded, "--tpu=t"]


def test_secrets_in_a_separate_argument_are_masked():
    assert mask_command(["run", "--api-key", "abc", "--tpu=t"]) == "run --api-key '***' --tpu=t"


@pytest.mark.parametrize(
    ("words", "handed_on"),
    [
        (["--engine=torch", "--device=cpu", "--model_dir=/m"], ["--device=cpu", "--model_dir=/m"]),
        (["--seed=3", "--engine", "torch", "--recompute=on"], ["--seed=3", "--recompute=on"]),
        (["--engine=torch", "--save_spec=/s.json", "--model=x"], None),
        (["--engine=torch", "--dry_run", "--model=x"], None),
        (["--engine=mesh", "--model=x"], None),
        (["--engine=jax"], None),
    ],
)
def test_engine_torch_gets_the_arguments_of_its_runs(words, handed_on, monkeypatch):
    from t0.cli import mesh_transformer, torch_run

    given = []
    monkeypatch.setattr(torch_run, "main", given.append)
    with contextlib.suppress(UserError) if handed_on else pytest.raises(UserError, match="--"):
        mesh_transformer.main(["t5_mesh_transformer", *words])
    assert given == ([handed_on] if handed_on else [])
