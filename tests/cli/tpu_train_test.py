"""The restart loop of bin/tpu_train, over a command that ends with given statuses."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bin" / "tpu_train"
COMMAND = """#!/usr/bin/env bash
cd "$(dirname "$0")"
echo "${TPU_LOAD_LIBRARY-unset} $*" >> calls
read -r status < statuses
sed -i 1d statuses
exit "$status"
"""


@pytest.fixture
def ended(tmp_path):
    """Runs the script over a command with these statuses; returns what it did and the calls."""

    def run(*statuses, flags=("--tpu=my-tpu", "--gin_param=a = 'b c'")):
        (tmp_path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        command = tmp_path / "command"
        command.write_text(COMMAND)
        command.chmod(0o755)
        own = {"T0_TRAIN_COMMAND": str(command), "T0_RESTART_SECONDS": "0"}
        environment = {**os.environ, **own}
        environment.pop("TPU_LOAD_LIBRARY", None)
        done = subprocess.run([SCRIPT, *flags], env=environment, capture_output=True, text=True)
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


def test_tpu_restart_loop_ends_after_a_finished_run(ended):
    done, calls = ended(0, 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert calls == ["0 --tpu=my-tpu --gin_param=a = 'b c'"]


def test_tpu_restart_loop_restarts_a_preempted_run(ended):
    done, calls = ended(75, 75, 0, 0)
    assert done.returncode == 0
    assert len(calls) == 3
    assert len(set(calls)) == 1
    assert done.stderr.count("status 75; resuming in 0 s") == 2


@pytest.mark.parametrize("status", [1, 2, 130, 137])
def test_tpu_restart_loop_ends_on_another_exit_status(ended, status):
    done, calls = ended(75, status, 0)
    assert done.returncode == status
    assert len(calls) == 2
    assert f"ended with status {status}, which a restart does not fix" in done.stderr


def test_tpu_restart_loop_passes_local_tpu_to_the_run(ended):
    _, calls = ended(0, flags=("--tpu=local", "--seed=1"))
    assert calls == ["unset --tpu=local --seed=1"]
