"""The operative config is two files: one with stock names, one with this project's."""

import re
from pathlib import Path

import gin
import pytest

from t0.compat import gin_config
from t0.config import gin_files, parse, saved_config

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


def texts():
    """The two texts for a configuration whose bindings have all been read."""
    gin_config._OPERATIVE_CONFIG.clear()
    gin_config._OPERATIVE_CONFIG.update(gin_config._CONFIG)
    return list(saved_config.operative_texts().values())


@pytest.mark.parametrize("path", sorted(BEFORE.glob("operative/*.gin")), ids=lambda p: p.stem)
def test_operative_config_split_separates_stock_and_own_names(path):
    parse.parse([str(path)], [])
    stock, ours = texts()
    assert set(bindings(path.read_text())) <= set(bindings(stock + ours))
    code = [line for line in stock.splitlines() if not line.startswith("#")]
    assert not [line for line in code if line.startswith(OURS) or "@t0." in line]
    assert "import t0" not in stock
    assert len(bindings(stock)) > 80


def test_operative_config_macro_of_ours_moves_with_its_readers():
    gin.parse_config(
        "import t0.run.run_files\nimport t5.models\n"
        "A = @t0.type_of_checkpoint()\nB = %A\nC = 3\n"
        "run.mode = %B\nrun.train_steps = %C\nrun.optimizer = '@t0.x'\n"
    )
    stock, ours = texts()
    assert [name for name, _ in bindings(stock)] == ["C", "run.optimizer", "run.train_steps"]
    assert [name for name, _ in bindings(ours)] == ["A", "B", "run.mode"]
    assert "import t0" not in stock
    assert "import t5" not in ours
    assert "import t0.run.run_files" in ours


def test_operative_config_companion_file_is_read_next(tmp_path):
    for name in (saved_config.FILE, saved_config.OURS):
        (tmp_path / name).touch()
    path = str(tmp_path / "operative_config.gin")
    beside = str(tmp_path / "operative_config.t0.gin")
    assert gin_files.resolved_names([path, "runs/eval.gin"], []) == [path, beside, "runs/eval.gin"]
    assert gin_files.in_order(["runs/eval.gin", path, beside]) == [path, beside, "runs/eval.gin"]
    assert gin_files.resolved_names([path, beside], []) == [path, beside]
    assert gin_files.resolved_names(["operative_config.gin"], [str(tmp_path)]) == [
        "operative_config.gin",
        "operative_config.t0.gin",
    ]
