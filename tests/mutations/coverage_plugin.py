"""A plugin of pytest that records which tests execute which lines of the product.

    T0_LINES=DIR python -m pytest -p tests.mutations.coverage_plugin

Each process of the tests, and each command of their server, writes a file to DIR. The context of a
line is the id of the test. What the product's own child processes execute is not recorded, nor what
runs when a module is imported.
"""

import os
from pathlib import Path

import coverage
import pytest

from tests.mutations import FOLDER_VARIABLE, TEST_VARIABLE

_started: dict[int, coverage.Coverage] = {}


def start(context=None):
    """Starts recording in this process, in the context of a test."""
    file = str(Path(os.environ[FOLDER_VARIABLE], "lines"))
    recording = coverage.Coverage(file, data_suffix=True, source_pkgs=["t0"], config_file=False)
    recording.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
    recording.start()
    if context:
        recording.switch_context(context)
    _started.clear()  # a forked process has its parent's, which it must not write
    _started[os.getpid()] = recording
    return recording


def save():
    """Ends the recording of this process."""
    recording = _started.pop(os.getpid(), None)
    if recording:
        recording.stop()
        recording.save()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    recording = _started.get(os.getpid()) or start()
    recording.switch_context(item.nodeid)
    os.environ[TEST_VARIABLE] = item.nodeid
    try:
        return (yield)
    finally:
        if nextitem is None:  # the last test of this process
            save()
