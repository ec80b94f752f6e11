"""The memory that a process can allocate is that of the machine, or of its container."""

import sys

import psutil
import pytest

from t0 import machine


def test_memory_limit_without_container_is_that_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    total = psutil.virtual_memory().total
    assert 0 < machine.available_memory_bytes() < total


@pytest.mark.parametrize(("limit", "expected"), [("5000000", 2_000_000), ("max", None)])
def test_memory_limit_of_the_container_is_respected(limit, expected, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    available = machine.available_memory_bytes()
    assert available == expected if expected else available > 3_000_000


def test_installed_version_is_that_of_the_first_installed_distribution(tmp_path, monkeypatch):
    # pip installs SeqIO's nightly build, because T5 requires it.
    for name, version in (("seqio_nightly", "0.0.18"), ("seqio_other", "2")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    installed_version = machine.installed_version.__wrapped__  # without its cache
    assert installed_version("seqio", "seqio-nightly") == "0.0.18"
    assert installed_version("seqio") is None
