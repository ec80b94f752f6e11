"""`t0 compare`: what it prints and writes, and what it refuses."""

import json

import numpy as np
import pytest

from t0.cli import main as cli


def evaluation(folder, skill):
    """Writes one prompt of a dataset with 60 examples; more skill is right more often."""
    rng = np.random.default_rng(1)
    lines = []
    for idx in range(60):
        likelihoods = rng.normal(-5, 1, 2)
        likelihoods[idx % 2] += skill
        choices = [
            {"text": text, "log_likelihood": value, "tokens": 2}
            for text, value in zip(("no", "yes"), likelihoods.tolist(), strict=True)
        ]
        prediction = int(likelihoods.argmax())
        lines.append({"idx": idx, "choices": choices, "gold": idx % 2, "prediction": prediction})
    right = sum(line["gold"] == line["prediction"] for line in lines)
    task = {"dataset": "super_glue/rte", "prompt": "p", "examples": 60, "excluded": {}}
    task["metrics"] = {"accuracy": 100 * right / 60}
    (folder / "scores").mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "scores" / "rte_p_10.jsonl").write_text(text)
    results = {"schema": 1, "run": {"step": 10}, "tasks": {"rte_p": task}}
    (folder / "results_10.json").write_text(json.dumps(results))
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    return [evaluation(tmp_path / name, skill) for name, skill in (("a", 0.0), ("b", 2.0))]


def test_compare_prints_tables_and_writes_report_files(folders, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["compare", *folders, f"--output={out}", "--title=Mine"]) == 0
    printed = capsys.readouterr().out
    assert "A a, step 10 (baseline)" in printed and "Difference from A" in printed
    assert str(out / "report.html") in printed and (out / "report_differences.csv").is_file()
    assert "<title>Mine</title>" in (out / "report.html").read_text()


def test_report_prints_json_instead_of_tables(folders, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["report", *folders, f"--output={out}", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "report.json").read_text())
    assert len(printed["runs"]) == 2


def test_report_and_compare_take_the_same_baseline_argument(folders, capsys):
    for verb in ("report", "compare"):
        assert cli.main([verb, *folders, "--baseline", folders[1]]) == 0
    first, second = capsys.readouterr().out.split("Difference from B")[:2]
    assert "B b, step 10 (baseline)" in first and "B b, step 10 (baseline)" in second


def test_compare_baseline_outside_the_runs_and_mean_of_seeds(folders, tmp_path, capsys):
    third = evaluation(tmp_path / "c", 2.1)
    assert cli.main(["compare", f"ours={folders[1]},{third}", f"--baseline={folders[0]}"]) == 0
    printed = capsys.readouterr().out
    assert "A a, step 10 (baseline)" in printed and "B ours (mean of 2 seeds)" in printed
    assert cli.main(["compare", folders[0], f"b={folders[1]}", "--baseline=b"]) == 0
    assert "B b (baseline)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["{0}"], "expected two or more to compare"),
        (["{0}", "{1}", "--baseline=nothing"], "unknown run 'nothing'"),
        (["{0}", "/no"], "/no does not exist"),
        (["{0}", "{1}", "--output=/proc/x"], "cannot write"),
    ],
)
def test_compare_user_error_is_one_message(words, wanted, folders, capsys):
    with pytest.raises(SystemExit):
        cli.main(["compare", *(word.format(*folders) for word in words)])
    said = capsys.readouterr().err
    assert wanted in said and "Traceback" not in said
