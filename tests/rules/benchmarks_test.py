"""The list of claims in benchmarks/run.py against the programs and the README that it runs for."""

import ast
import json
import re
import sys
from pathlib import Path

from t0.mesh import devices
from tests.helpers.cases import as_subtests

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import growth
    import run as benchmarks
    import summary
    import training
    import workers
finally:
    sys.path.remove(str(FOLDER))


@as_subtests("name", benchmarks.CLAIMS)
def test_benchmark_claims_pass_flags_that_the_program_has(name):
    claim = benchmarks.CLAIMS[name]
    text = (FOLDER / claim.program).read_text()
    for argument in claim.arguments:
        flag = argument.split("=")[0]
        assert f'"{flag}"' in text or not flag.startswith("--"), flag
    for argument in (*claim.arguments, *claim.before):
        argument.format(**dict.fromkeys((*benchmarks.PATHS, "scratch"), "here"))


def test_benchmark_programs_of_the_readme_are_all_claims():
    named = re.findall(r"^\| `(\w+)\.py` \|", (FOLDER / "README.md").read_text(), re.M)
    assert set(named) == {claim.program.removesuffix(".py") for claim in benchmarks.CLAIMS.values()}


def test_benchmark_table_shows_the_newest_figures():
    text = (FOLDER / "README.md").read_text()
    assert summary.rewrite(text, summary.render(summary.read_history())) == text
    assert {figure.claim for figure in summary.FIGURES} == set(benchmarks.CLAIMS)


def test_benchmark_table_prefers_machines_with_bfloat16(tmp_path):
    history = tmp_path / "history.jsonl"
    records = [
        {"claim": "overlap", "date": date, "commit": "c", "cells": cells, "machine": machine}
        for date, sets, seconds in (
            ("2026-01-01", ["avx2", "avx512_bf16"], "4.0"),
            ("2026-01-02", ["avx2", "avx512_bf16"], "1,000"),
            ("2026-01-03", ["avx2"], "9.0"),
        )
        for cells in (
            [
                ["t0 overlap", "texts/s of the processor", seconds],
                ["sets", "texts/s of the processor", "400.0"],
            ],
        )
        for machine in (
            {
                "processor": "Intel(R) Xeon",
                "cores": 2,
                "instruction_sets": sets,
                "product_gflops": {"float32": 1, "bfloat16": 2},
            },
        )
    ]
    history.write_text("".join(json.dumps(record) + "\n" for record in records))
    table = summary.render(summary.read_history(history))
    assert "| 1,000 | 400.0 (sets of n-grams) | 2.5 | A | 2026-01-02 |" in table
    assert "2-core Intel Xeon, AVX512 BF16, one large matrix product: 1 GFLOP/s" in table
    assert len(table.splitlines()) == 5


def test_benchmark_bfloat16_only_if_the_processor_multiplies_it(monkeypatch):
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    assert workers.types() == ("float32", "bfloat16")
    assert training.chosen("") == training.SYSTEMS
    assert set(training.chosen("stock$")) == {"Mesh TensorFlow, stock"}
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    assert workers.types() == ("float32",)
    assert set(training.chosen("")) == {
        "Mesh TensorFlow, stock",
        "ours, float32",
        "Transformers, float32",
        "Transformers, float32, compiled",
    }
    assert training.chosen("", "gpu:0") == training.SYSTEMS


def test_benchmark_growth_measures_most_rows_once_in_the_middle():
    assert growth.order([1, 10, 100], 3) == [1, 10, 100, 10, 1, 1, 10]
    assert growth.order([1, 10, 100], 1) == [1, 10, 100]


def test_benchmark_table_cells_are_named_by_row_and_column():
    first = [
        "| feeding | type | steps/s | ratio |",
        "|---|---|---|---|",
        "| ours | fp32 | 1,5 | 2.0 |",
    ]
    second = ["| a | b |", "|---|---|", "| x | 7 |"]
    text = "\n".join(["2 tasks", *first, "", *second])
    assert list(benchmarks.cells(text)) == [
        ("ours, fp32", "steps/s", "1,5"),
        ("ours, fp32", "ratio", "2.0"),
        ("x", "b", "7"),
    ]


@as_subtests("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_benchmark_imports_exist(path):
    """Programs here are seldom run; a moved name is found without running them."""
    root = FOLDER.parent
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("t0"):
            continue
        place = root / node.module.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert file.exists(), f"{path.name}: {node.module}"
        text = file.read_text()
        for alias in node.names:
            module = (place / alias.name).with_suffix(".py").exists() or (
                place / alias.name
            ).is_dir()
            assert module or re.search(rf"\b{alias.name}\b", text), f"{node.module}.{alias.name}"
