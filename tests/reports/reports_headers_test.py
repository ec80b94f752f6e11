"""The examples in the room's headers run: doctests, and blocks that read results."""

import ast
import doctest
import importlib
import pkgutil
import textwrap
from pathlib import Path

import pytest

from t0 import reports
from tests.reports.made_up_evaluations import Decoded, Evaluation, random_lines, write_overlap

MODULES = [reports, *(
    importlib.import_module(f"t0.reports.{module.name}")
    for module in pkgutil.iter_modules(reports.__path__)
)]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_doctests_of_report_modules(module):
    assert doctest.testmod(module).failed == 0


def example_of(module):
    """Returns the code in a module's header: the indented blocks that are Python and call."""
    blocks = module.__doc__.split("\n\n")
    indented = [textwrap.dedent(block) for block in blocks if block.startswith("    ")]
    code = []
    for block in indented:
        try:
            tree = ast.parse(block)
        except SyntaxError:  # file names, records, the API's list
            continue
        if any(isinstance(node, ast.Call) for node in ast.walk(tree)):
            code.append(block)
    return "\n".join(code)


@pytest.mark.usefixtures("rough_pictures")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_header_example_runs(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = random_lines(20, [2], 1)
    Evaluation(Path("eval"), 1000, split="test").add(
        "super_glue_rte_GPT_3_style_score_eval", "super_glue/rte", "GPT-3 style", lines
    ).write()
    Decoded(Path("eval"), 1000).add("mt", {"bleu": 21.3}, []).write()
    prompts = ["GPT_3_style"]
    write_overlap(
        Path("overlap"), {"GPT_3_style": range(6)}, prompts=prompts, examples=20, split="test"
    )
    Path("model").mkdir()
    Path("model/metrics.jsonl").write_text('{"step": 100, "loss": 3}\n{"step": 200, "loss": 2.9}\n')
    names = {}
    for other in (*MODULES, module):
        names |= {name: value for name, value in vars(other).items() if not name.startswith("__")}
    code = example_of(module)
    assert code or ">>>" in module.__doc__
    exec(compile(code, module.__name__, "exec"), {**names, "Path": Path})
