"""Stock T5, as published, reads the operative config that a run of ours has written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STOCK = Path(__file__).parent / "stock_main.py"


@pytest.mark.slow
def test_operative_gin_file_is_read_by_stock_t5(pretrained, tmp_path):
    words = [f"--gin_file={pretrained}/operative_config.gin", f"--model_dir={tmp_path}"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, STOCK, *words, "--module_import=t5.models"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert "run.train_steps 1" in lines
    assert "run.batch_size 4" in lines
    assert "decoder/Unitransformer.d_model %d_model" in lines
    ours = (pretrained / "operative_config.t0.gin").read_text()
    assert "train_loop.seed = 0" in ours


def test_operative_gin_files_of_both_kinds_are_read(command, pretrained):
    done = command(f"--gin_file={pretrained}/operative_config.gin", "--dry_run")
    assert done.status == 0, done.err
    assert f"train_loop.seed = 0  # {pretrained}/operative_config.t0.gin:" in done.out
    assert f"run.train_steps = 1  # {pretrained}/operative_config.gin:" in done.out
