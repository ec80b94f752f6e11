"""Ten times the examples take no more memory: a whole evaluation, as the system sees it."""

import re
import subprocess
import sys

import pytest

from tests.evaluation import streamed_evaluation
from tests.helpers.command_server import ROOT


def peak_bytes(model_dir, examples):
    done = subprocess.run(
        [sys.executable, "-m", streamed_evaluation.__name__, model_dir, str(examples)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = (model_dir / "validation_eval" / "scores" / "streamed_1.jsonl").open()
    assert sum(1 for _ in lines) == examples
    return 1024 * int(re.search(r"^peak (\d+)$", done.stdout, re.M)[1])


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_ten_times_the_examples(tmp_path):
    few, many = 2_000, 20_000
    growth = peak_bytes(tmp_path / "many", many) - peak_bytes(tmp_path / "few", few)
    # The records of the additional examples are over 70 MB, their lines in the results as much;
    # SQLite's cache, which a small task does not fill, is 32 MiB.
    assert growth < 48 * 2**20
