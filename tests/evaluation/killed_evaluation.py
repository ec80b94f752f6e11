"""A process that evaluates two checkpoints on three tasks, and may kill itself while it writes.

`main` takes MODEL_DIR WRITE LINE: it ends before that line of that file, both counted from 0.

Files are written in this order: a task's scores, its entry, the next task's ..., a step's results.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from t0.evaluation import results
from tests.evaluation.evaluation_runs import dataset, evaluate_on_mesh, make_records
from tests.evaluation.tiny_models import random_variables, write_checkpoint

STEPS = (7, 9)
TASKS = ("first", "second", "third")


def write_checkpoints(model_dir):
    for step in STEPS:
        write_checkpoint(model_dir, random_variables("t5.1.1", seed=step), step=step)


def run(model_dir):
    tasks = [dataset(name, make_records(seed, examples=9)) for seed, name in enumerate(TASKS)]
    return evaluate_on_mesh(model_dir, tasks, step="all")


def _kill_at(write, line):
    whole, begun = results.write_whole, []

    def lines_of(lines, doomed):
        for number, text in enumerate(lines):
            if doomed and number == line:
                os.kill(os.getpid(), signal.SIGKILL)
            yield text

    def write_whole(path, lines):
        begun.append(path)
        whole(path, lines_of(lines, len(begun) == write + 1))

    results.write_whole = write_whole


def main():
    """Runs as a program of a server of commands."""
    tempfile.tempdir = os.environ["TMPDIR"]  # the server may have asked for it before
    _kill_at(int(sys.argv[2]), int(sys.argv[3]))
    run(Path(sys.argv[1]))
