"""Runs groups of test files in forked processes: `pytest --workers=2`, by default one per core.

The tests are collected once, and heavy packages are imported once. Each group of files then gets a
process of its own, which sees the imports and none of what other groups changed. `--workers=0` runs
all tests in pytest's own process, as a debugger needs it.
"""

import contextlib
import gc
import importlib
import itertools
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from tests.helpers.command_server import IMPORTED_FIRST, convert_first
from tests.helpers.confined import confinement

# Folders whose files share what takes long to make (a trained model, a server of commands), and the
# number of groups that their files form. Elsewhere each file is a group.
GROUPS = {"end_to_end": 1, "examples": 1, "reports": 1, "torch": 4, "caching": 4}
# Folders whose files take long start first, so that the processes end at about the same time.
LONG = ("end_to_end", "torch", "caching", "training", "rehearsal", "inference", "evaluation")
LONG += ("reports",)


def pytest_addoption(parser):
    parser.addoption(
        "--workers",
        metavar="NUMBER",
        help="processes at a time, each for a group of files; 0: pytest's own process; default: "
        "one for each core, at most 4",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Runs each group of the collected tests in a forked process of its own."""
    option = session.config.option
    workers = _default_workers() if option.workers is None else int(option.workers)
    waiting, running, numbers = _groups(session.items), {}, itertools.count()
    if (
        not workers
        or len(waiting) < 2
        or option.usepdb
        or option.collectonly
        or session.testsfailed
    ):
        return None
    _import_once()
    with tempfile.TemporaryDirectory(prefix="t0_groups_") as folder:
        try:
            while waiting or running:
                if waiting and len(running) < workers:
                    group, path = waiting.pop(0), Path(folder, str(next(numbers)))
                    running[_fork(session, group, path)] = (group, path)
                    continue
                pid, status = os.wait()
                left = _replay(session, *running.pop(pid), status)
                waiting[:0] = [left] if left else []
        finally:
            for pid in running:
                os.kill(pid, signal.SIGTERM)
    return True


def _groups(items):
    """The tests of each group, in the order in which the groups start."""
    files = list(dict.fromkeys(item.path for item in items))

    def group_of(item):
        folder = item.path.parent.name
        number = files.index(item.path)
        return folder, number % GROUPS.get(folder, len(files))

    def begins(group):
        return LONG.index(group[0]) if group[0] in LONG else len(LONG)

    names = {item: group_of(item) for item in items}
    ordered = sorted(items, key=lambda item: (begins(names[item]), names[item]))
    return [list(group) for _, group in itertools.groupby(ordered, names.get)]


def _default_workers():
    """One for each core, and for each 4 GB; beyond 4, the longest group decides the time."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return max(1, min(os.cpu_count(), int(memory_gb // 4), 4))


def _import_once():
    """Imports what most groups need if a collected file already needs TensorFlow."""
    for name in IMPORTED_FIRST if "tensorflow" in sys.modules else ():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if "tensorflow" in sys.modules:
        convert_first()
    gc.collect()
    gc.freeze()  # a child that collected garbage would write to, and so copy, every page
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    threads -= {
        Path("/proc/self/comm").read_text().strip(),
        "jemalloc_bg_thd",
    }  # pyarrow restarts its own
    assert not threads, f"a test file computes when it is imported: a fork would lose {threads}"


def _fork(session, group, path):
    """Starts a process that runs a group and writes its reports, a line each, to a file."""
    capture = session.config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture()
    capture.read_global_capture()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _run(session, group, path, capture)
            status = 0
        except BaseException:
            path.with_suffix(".error").write_text(traceback.format_exc())
        finally:
            os._exit(status)
    capture.resume_global_capture()
    return pid


def _run(session, group, path, capture):
    """Runs a group in this forked process."""
    plugins = session.config.pluginmanager
    # Each process has its own temporary files and notes.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(path.parent)
    os.environ[confinement.NOTES] = f"{path}.notes"
    # The child must not share the position of the parent's capture file, nor print its own lines.
    capture.stop_global_capturing()
    capture.start_global_capturing()
    reporter = plugins.unregister(name="terminalreporter")
    silent = type(reporter)(session.config, Path(os.devnull).open("w"))  # noqa: SIM115
    silent.pytest_sessionstart(session)
    plugins.register(silent, "terminalreporter")
    with path.open("w", buffering=1) as file:
        plugins.register(_Forwarding(session.config, file))
        for item, following in itertools.zip_longest(group, group[1:]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class _Forwarding:
    """Writes reports, and which test has started, as lines of JSON."""

    def __init__(self, config, file):
        self._config, self._file = config, file

    def pytest_runtest_logstart(self, nodeid, location):
        self._write({"pytest_runtest_logstart": [nodeid, location]})

    def pytest_runtest_logreport(self, report):
        hook = self._config.hook
        self._write(hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid, location):
        self._write({"pytest_runtest_logfinish": [nodeid, location]})

    def _write(self, value):
        self._file.write(json.dumps(value, default=str) + "\n")


def _replay(session, group, path, status):
    """Reports a group's tests. If its process was killed, returns the tests that did not run."""
    hook, done = session.config.hook, set()
    for line in path.read_text().splitlines():
        value = json.loads(line)
        if "nodeid" not in value:  # a test starts or ends
            ((event, test),) = value.items()
            getattr(hook, event)(nodeid=test[0], location=test[1])
            done.add(test[0])
            continue
        report = hook.pytest_report_from_serializable(config=session.config, data=value)
        if isinstance(report.longrepr, list):  # of a skipped test; JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        hook.pytest_runtest_logreport(report=report)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
    if not status:
        return []
    killed = next((item for item in reversed(group) if item.nodeid in done), group[0])
    error = path.with_suffix(".error")
    how = error.read_text() if error.exists() else f"its process ended with wait status {status}"
    report = pytest.TestReport(killed.nodeid, killed.location, {}, "failed", how, "call")
    hook.pytest_runtest_logreport(report=report)
    return [item for item in group if item is not killed and item.nodeid not in done]
