"""Paths that no command can use: `t0` answers with one line, whatever is wrong."""

import contextlib
import ctypes
import os
import sys
import traceback

import pytest

from t0.catalogue import listing, starting
from t0.cli import init, main, tasks, verify

# So that each process that is forked has them.
IMPORTED = (init, listing, starting, tasks, verify)

CAPSET, CAPABILITIES_VERSION = 126, 0x20080522  # of Linux on x86-64
# "{}" is the hostile path; $OUT a folder that can be written.
COMMANDS = [
    ["tasks", "--data_dir={}", "super_glue_rte_GPT_3_style"],
    ["tasks", "--cache_dirs={}", "super_glue_rte_GPT_3_style"],
    ["verify", "{}"],
    ["init", "new", "{}", "--output=$OUT/new"],
]
KINDS = ["long", "newline", "file", "folder", "below a file", "loop", "shut file", "shut folder"]


def hostile(kind, folder):
    """Makes a path of a kind and returns it."""
    path = folder / "hostile"
    if kind == "long":
        return folder / ("x" * 300)
    if kind == "newline":
        return folder / "two\nlines\x1b[31m"
    if kind == "loop":
        path.symlink_to(path)
    elif "folder" in kind:
        path.mkdir()
        (path / "results_1.json").write_text("{}")
    else:
        path.write_text("{}")
    if kind.startswith("shut"):
        path.chmod(0)
    return path / "x" if kind == "below a file" else path


def _stopped_by_modes():
    """Gives up root's capabilities, with which no mode of a file stops it."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    ctypes.CDLL(None).syscall(CAPSET, header, (ctypes.c_uint32 * 6)())


def answer(words, folder):
    """Runs `t0` in a process of its own; returns its status and stderr."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with open(read, encoding="utf-8") as file:
            text = file.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text
    status = 99
    try:
        with open(write, "w", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            _stopped_by_modes()
            try:
                status = main.main(words)
            except SystemExit as error:
                status = error.code
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(status)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_path_that_cannot_be_used_is_one_line(words, tmp_path):
    wrong = []
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "_")
        (folder / "out").mkdir(parents=True)
        path = str(hostile(kind, folder))
        given = [word.format(path).replace("$OUT", f"{folder}/out") for word in words]
        status, text = answer(given, folder)
        if status not in (0, 1, 2) or "Traceback" in text or "\x1b[31m" in text:
            wrong.append(f"{kind}: status {status}: {text[-700:]}")
        if status == 2 and not text.startswith(("t0 ", "usage")) and "t0 " not in text:
            wrong.append(f"{kind}: {text[-300:]}")
    assert not wrong, "\n\n".join(wrong)
