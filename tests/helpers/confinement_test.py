"""The block of the network holds in this process, in its children, and outside Python's sockets."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.helpers import processes
from tests.helpers.confined import confinement


def test_network_block_refuses_and_counts_connections():
    with socket.socket() as one, pytest.raises(confinement.NetworkBlockedError, match="192.0.2.1"):
        one.connect(("192.0.2.1", 80))
    with pytest.raises(confinement.NetworkBlockedError):
        socket.getaddrinfo("example.org", 443)
    with pytest.raises(confinement.NetworkBlockedError):
        socket.create_connection(("example.org", 443))
    hosts = ["192.0.2.1", "example.org", "example.org"]
    assert confinement.take_notes(os.environ[confinement.NOTES]) == [
        f"asked for {host}" for host in hosts
    ]


def test_network_block_allows_localhost():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        assert one.getpeername() == server.getsockname()


def test_network_block_applies_to_child_processes():
    code = "import socket; socket.create_connection(('example.org', 443))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 1
    assert "NetworkBlockedError" in child.stderr
    assert confinement.take_notes(os.environ[confinement.NOTES]) == ["asked for example.org"]


def test_writes_outside_the_folders_of_tests_are_noted(tmp_path):
    outside = Path(__file__).with_suffix(".txt")
    if outside.is_relative_to(tempfile.gettempdir()):
        pytest.skip("the checkout is in the folder for temporary files, where tests may write")
    code = f"open('inside', 'w'); open({str(outside)!r}, 'w')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    outside.unlink()
    assert confinement.take_notes(os.environ[confinement.NOTES]) == [f"wrote {outside}"]


def test_processes_that_a_test_leaves_running_are_found_and_ended():
    before, mark = processes.running(), f"{confinement.NOTES}={os.environ[confinement.NOTES]}"
    sleeper = "import time; time.sleep(600)"
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}])"
    subprocess.run([sys.executable, "-c", starter], check=True)
    while not (lines := processes.end_new(before, mark)):
        time.sleep(0.01)  # until the new process is a Python
    assert len(lines) == 1
    assert sleeper in lines[0]


def test_environment_variables_of_the_caller_do_not_leak():
    assert "T0_DATA_DIR" not in os.environ
    assert "T0_VOCAB" not in os.environ
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["https_proxy"].startswith("http://127.0.0.1:")
