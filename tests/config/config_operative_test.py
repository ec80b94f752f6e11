"""The operative config is two files: one with stock names, one with this project's."""

import re
from pathlib import Path

import pytest

from t0.config import gin_files, operative

BEFORE = Path(__file__).resolve().parents[1] / "fixtures" / "before_redesign"
OURS = ("train_loop", "packing", "keep_checkpoints", "apply_updates", "vocabulary.", "@t0", "t0.")


@pytest.fixture(scope="module", autouse=True)
def registered():
    from t0.compat import t5_mesh  # noqa: F401 (registers T5's names)
    from t0.run import configure

    configure.register()


def bindings(text):
    found = re.findall(r"^([^\s#=]+) = (.*(?:\n[ \])}].*)*)", text, re.M)
    return sorted((name, re.sub(r"\s", "", value)) for name, value in found)


@pytest.mark.parametrize("path", sorted(BEFORE.glob("operative/*.gin")), ids=lambda p: p.stem)
def test_operative_config_split_separates_stock_and_own_names(path):
    text = path.read_text()
    stock, ours = operative.split(text)
    assert bindings(stock + ours) == bindings(text)
    code = [line for line in stock.splitlines() if not line.startswith("#")]
    assert not [line for line in code if line.startswith(OURS) or "@t0." in line]
    assert "import t0" not in stock
    assert len(bindings(stock)) > 80


def test_operative_config_macro_of_ours_moves_with_its_readers():
    text = (
        "# Macros:\n# ===\nA = @t0.type_of_checkpoint()\nB = %A\nC = 3\n\n"
        "# Parameters for run:\nrun.mode = %B\nrun.train_steps = %C\nrun.optimizer = '@t0.x'\n"
    )
    stock, ours = operative.split(text)
    assert [name for name, _ in bindings(stock)] == ["C", "run.optimizer", "run.train_steps"]
    assert [name for name, _ in bindings(ours)] == ["A", "B", "run.mode"]


def test_operative_config_companion_file_is_read_next(tmp_path):
    operative.save(str(tmp_path), "# Parameters for t0.train_loop:\ntrain_loop.seed = 3\n")
    path = str(tmp_path / "operative_config.gin")
    beside = str(tmp_path / "operative_config.t0.gin")
    assert gin_files.resolved_names([path, "runs/eval.gin"], []) == [path, beside, "runs/eval.gin"]
    assert gin_files.in_order(["runs/eval.gin", path, beside]) == [path, beside, "runs/eval.gin"]
    assert gin_files.resolved_names([path, beside], []) == [path, beside]
    assert gin_files.resolved_names(["operative_config.gin"], [str(tmp_path)]) == [
        "operative_config.gin",
        "operative_config.t0.gin",
    ]
