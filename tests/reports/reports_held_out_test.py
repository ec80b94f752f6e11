"""The report in the terminal: the held-out mean first, next to chance and T0's mean."""

import json

from t0.reports import read_report


def entry(dataset, prompt, accuracy, chance=50.0):
    return {
        "dataset": dataset,
        "prompt": prompt,
        "examples": 10,
        "metrics": {"accuracy": accuracy},
        "chance": chance,
    }


def write(folder, tasks, name="results_7.json", **run):
    path = folder / name
    content = {"schema": 1, "run": {"model_dir": "/m/tiny", "step": 7, **run}, "tasks": tasks}
    path.write_text(json.dumps(content))
    return path


def test_held_out_mean_comes_first_in_terminal_report(tmp_path):
    tasks = {
        "a": entry("super_glue/rte", "one", 40.0),
        "b": entry("super_glue/rte", "two", 60.0),
        "c": entry("super_glue/cb", "one", 20.0, chance=30.0),
        "d": entry("mine", "one", 99.0),
    }
    lines = read_report([write(tmp_path, tasks)], notes=["Only 10."]).lines()
    assert lines[0] == "Note: Only 10."
    lines = [line for line in lines if not line.startswith("Note: tiny")]
    # (50 + 20) / 2, (64.6 + 45.4) / 2, (81.0 + 70.1) / 2; "mine" is not one of T0's.
    assert lines[1] == (
        "held out, 2 of T0's 11 datasets: mean 35.0   chance 40.0   T0-3B 55.0   T0-11B 75.5"
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:]}
    assert rows["super_glue/rte"] == [
        *("2", "10", "50.0", "50.0", "40.0–60.0", "50.0", "64.6", "81.0")
    ]
    assert rows["mine"] == ["1", "10", "99.0", "99.0", "99.0–99.0", "50.0", "–", "–"]
    assert max(map(len, lines)) <= 90


def test_held_out_mean_is_missing_without_t0_datasets(tmp_path):
    lines = read_report([write(tmp_path, {"d": entry("mine", "one", 99.0)})]).lines()
    assert not any(line.startswith("held out") for line in lines)
    assert lines[lines.index("Accuracy (%) over prompts") + 1].split() == [
        *("dataset", "prompts", "examples", "mean", "median", "range", "chance")
    ]


def test_perplexity_in_terminal_report(tmp_path):
    task = {"examples": 5, "tokens": 90, "metrics": {"nats_per_token": 2.5}}
    write(tmp_path, {"d": entry("mine", "one", 99.0)})
    path = write(tmp_path, {"text_lm": task}, "perplexity_7.json", mode="perplexity")
    lines = read_report([tmp_path / "results_7.json", path]).lines()
    assert lines[-1].split() == ["text_lm", "nats_per_token", "2.50", "5"]
