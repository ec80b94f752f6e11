"""Paths that no command can use: `t0` answers with one line, whatever is wrong."""

import contextlib
import os
import sys
import traceback

import pytest

from t0.catalogue import listing, starter_folder
from t0.cli import init, main, tasks, verify
from tests.helpers import capabilities
from tests.helpers.hostile_paths import KINDS, fault, hostile

# So that each process that is forked has them.
IMPORTED = (init, listing, starter_folder, tasks, verify)

# "{}" is the hostile path; $OUT a folder that can be written.
COMMANDS = [
    ["tasks", "--data_dir={}", "super_glue_rte_GPT_3_style"],
    ["tasks", "--cache_dirs={}", "super_glue_rte_GPT_3_style"],
    ["verify", "{}"],
    ["init", "new", "{}", "--output=$OUT/new"],
]


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
            capabilities.give_up()
            try:
                status = main.main(words)
            except SystemExit as error:
                status = error.code
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(status)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_unusable_path_error_message_is_one_line(words, tmp_path):
    wrong = []
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "_")
        (folder / "out").mkdir(parents=True)
        path = str(hostile(kind, folder))
        given = [word.format(path).replace("$OUT", f"{folder}/out") for word in words]
        status, text = answer(given, folder)
        wrong += fault("t0", kind, status, text)
    assert not wrong, "\n\n".join(wrong)
