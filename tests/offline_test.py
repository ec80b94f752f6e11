"""The block of the network holds in this process, in its children, and outside Python's sockets."""

import os
import socket
import subprocess
import sys

import offline
import pytest


@pytest.fixture
def expected_attempts():
    yield offline.attempts
    del offline.attempts[:]


def test_network_block_refuses_and_counts_connections(expected_attempts):
    with socket.socket() as one, pytest.raises(offline.NetworkBlockedError, match="192.0.2.1"):
        one.connect(("192.0.2.1", 80))
    with pytest.raises(offline.NetworkBlockedError):
        socket.getaddrinfo("example.org", 443)
    with pytest.raises(offline.NetworkBlockedError):
        socket.create_connection(("example.org", 443))
    assert expected_attempts == ["192.0.2.1", "example.org", "example.org"]


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


def test_environment_variables_of_the_caller_do_not_leak():
    assert "T0_DATA_DIR" not in os.environ
    assert "T0_VOCAB" not in os.environ
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["https_proxy"].startswith("http://127.0.0.1:")
