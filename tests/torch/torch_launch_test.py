"""The scripts that start the PyTorch engine: valid shell, and what they hand on."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.torch.engine_world import losses, message

BIN = Path(__file__).resolve().parents[2] / "bin"
PRINTS = '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n'


@pytest.fixture
def started(tmp_path):
    """Runs a script with programs that print their words; returns the words."""
    for name, text in {
        "python": PRINTS,
        "srun": '#!/usr/bin/env bash\nexec "$@"\n',
        "scontrol": "#!/usr/bin/env bash\nprintf 'node7\\nnode8\\n'\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(script, *words, **given):
        own = {"T0_PYTHON": f"{tmp_path}/python", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            [BIN / script, *words],
            env={**os.environ, **own, **given},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return run


def test_torchrun_launch_starts_one_process_per_gpu(started):
    words = started("torch_train", "--gin_param=a = 'b c'", "--recompute=on")
    assert words[:3] == ["-m", "torch.distributed.run", "--standalone"]
    assert "--nproc_per_node=gpu" in words and "--max_restarts=3" in words
    assert words[-4:] == ["-m", "t0.torch", "--gin_param=a = 'b c'", "--recompute=on"]
    assert "--nproc_per_node=2" in started("torch_train", "spec.json", T0_PROCESSES="2")


def test_slurm_nodes_use_first_node_as_rendezvous(started):
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "5"}
    words = started("torch_train.slurm", "/shared/spec.json", **job)
    assert {"--nnodes=2", "--rdzv_endpoint=node7:29500", "--rdzv_id=5"} <= set(words)
    assert words[-3:] == ["-m", "t0.torch", "/shared/spec.json"]


def test_accelerate_config_starts_processes_without_fsdp():
    config = yaml.safe_load((BIN.parent / "docs" / "accelerate.yaml").read_text())
    assert config["distributed_type"] == "MULTI_GPU" and config["mixed_precision"] == "no"
    assert "fsdp_config" not in config


def trained(world, folder, command, **given):
    """Whether a command has trained two steps by two processes."""
    done = subprocess.run(
        command,
        cwd=world.folder,
        env={**world.environment, **given},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 process(es) on cpu") == 1
    return len(losses(folder)) == 2


@pytest.mark.exhaustive
def test_accelerate_launch_trains(world, tmp_path):
    pytest.importorskip("accelerate")
    spec = world.specified(tmp_path / "model", 2)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes=2"]
    launch += ["--config_file", BIN.parent / "docs" / "accelerate.yaml", "--main_process_port=0"]
    command = [*launch, "-m", "t0.torch", spec, "--device=cpu"]
    assert trained(world, tmp_path / "model", command)


@pytest.mark.slow
def test_slurm_job_trains_on_two_nodes(world, tmp_path):
    pytest.importorskip("torch")
    # Both nodes are this machine; srun starts the command on each.
    for name, text in {
        "srun": '#!/usr/bin/env bash\n"$@" & "$@"; last=$?; wait $! && exit $last\n',
        "scontrol": "#!/usr/bin/env bash\necho localhost\necho localhost\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    spec = world.specified(tmp_path / "model", 2)
    own = {
        "T0_PYTHON": sys.executable,
        "T0_PROCESSES": "1",
        "T0_PORT": port,
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "5",
        "SLURM_SUBMIT_DIR": str(BIN.parent),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = [BIN / "torch_train.slurm", spec, "--device=cpu"]
    assert trained(world, tmp_path / "model", command, **own)


def test_torchrun_launch_scripts_use_existing_flags():
    run = pytest.importorskip("torch.distributed.run")
    known = set(run.get_args_parser()._option_string_actions)
    for script in ("torch_train", "torch_train.slurm"):
        lines = (BIN / script).read_text().partition("torch.distributed.run")[2]
        named = {word.partition("=")[0] for word in lines.split() if word.startswith("--")}
        assert named and {name.replace("-", "_") for name in named} <= {
            name.replace("-", "_") for name in known
        }


@pytest.mark.exhaustive
def test_compiled_training_losses_equal_uncompiled(world, tmp_path):
    pytest.importorskip("torch")
    plain, compiled = (tmp_path / name for name in ("plain", "compiled"))
    assert world.torch(world.specified(plain, 3)).returncode == 0
    lacking = {"CXX": "/no/compiler", "PATH": "/none", "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/a"}
    said = message(world.torch(world.specified(compiled, 3), "--compile", **lacking))
    assert "could not compile the model" in said
    assert "leave out --compile" in said
    cache = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/b"}
    done = world.torch(world.specified(compiled, 3), "--compile", **cache)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "b").rglob("*.so"))
    assert losses(compiled).keys() == losses(plain).keys() == {1, 2, 3}
    for step, loss in losses(plain).items():
        assert losses(compiled)[step] == pytest.approx(loss, rel=1e-4), step
