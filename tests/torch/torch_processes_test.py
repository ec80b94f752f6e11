"""The processes of a run find each other, and not those of an earlier start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402

from t0.torch import processes  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# Joins an earlier group's processes again. Gloo hung within 30 joins when it read their addresses.
JOINS_OFTEN = """
from t0.torch import processes

for number in range(30):
    with processes.join_processes("cpu", minutes=1.0) as joined:
        assert joined.max_over_processes(joined.rank + number) == number + 1
"""


@pytest.fixture
def started(monkeypatch):
    """Sets the environment of a process that torchrun has started N times again."""
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")

    def start(number):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
        return server

    return start


def test_process_group_restart_uses_separate_keys_in_store(started):
    """Each start prints why it failed; the failures of earlier starts do not count."""
    for number in range(2):
        started(number)
        with (
            pytest.raises(processes.UserError, match="one does not answer"),
            processes.join_processes("cpu"),
        ):
            raise RuntimeError("Connection closed by peer")


def test_process_group_user_error_ends_later_restarts(started):
    started(0)
    with pytest.raises(processes.UserError), processes.join_processes("cpu"):
        raise processes.UserError("no such mixture")
    started(1)
    with pytest.raises(SystemExit), processes.join_processes("cpu"):
        pytest.fail("a start after a mistake")
    assert not dist.is_initialized()


def test_process_group_of_one_process_needs_no_address(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with processes.join_processes("cpu") as joined:
        joined.wait()
        assert joined.all_reduce_sum(torch.ones(2)).tolist() == [1, 1]
    assert not dist.is_initialized()


def test_process_group_time_limit_of_zero_is_refused():
    with (
        pytest.raises(processes.UserError, match="expected a number above 0"),
        processes.join_processes("cpu", 0.0),
    ):
        pass


def test_process_group_joined_again_reads_no_earlier_addresses(tmp_path):
    program = tmp_path / "joins_often.py"
    program.write_text(JOINS_OFTEN)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launch, str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("multiplies", [False, True])
def test_automatic_activation_type_is_bfloat16_if_cpu_multiplies_it(monkeypatch, multiplies):
    monkeypatch.setattr(processes, "multiplies_bfloat16", lambda: multiplies)
    cpu = torch.device("cpu")
    chosen = [
        processes.choose_activation_type(name, cpu) for name in ("auto", "float32", "bfloat16")
    ]
    automatic = torch.bfloat16 if multiplies else torch.float32
    assert chosen == [automatic, torch.float32, torch.bfloat16]
