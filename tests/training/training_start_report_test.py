"""The lines at a run's start, from numbers alone."""

import dataclasses
import types

from absl import logging

from t0.feeding.mixing import TaskShare
from t0.feeding.training_data import Filling
from t0.training import start_report
from t0.training.start_report import Memory, RunSize


def data(count, examples=200):
    shares = [
        TaskShare(f"task_{n}", rate=1 / count, examples=examples, served=0) for n in range(count)
    ]
    filling = Filling(rows=4, examples=10, filled={"inputs": 0.991, "targets": 0.287})
    return types.SimpleNamespace(filling=filling, shares=lambda: shares)


def lines(given):
    return start_report.lines(
        20,
        1_020,
        RunSize(16, {"inputs": 512, "targets": 192}, parameters=76_961_152),
        microbatches=2,
        memory=start_report.memory_line(Memory(2**30, 3 * 2**30), devices=2, how="a guess"),
        data=given,
    )


def test_start_report_lines():
    assert "\n".join(lines(data(2))) == (
        "training from step 20 to 1,020: 16 sequences a step, inputs 512, targets 192\n"
        "  model: 76,961,152 parameters\n"
        "  memory: about 2.0 GiB on each of 2 device(s):\n"
        "    weights and optimizer 512.0 MiB, gradients and activations 1.5 GiB\n"
        "  1,000 steps of 11,264 tokens in 2 microbatch(es), 11,264,000 tokens in total\n"
        "  packing: 2.5 examples a sequence; filled: inputs 99.1%, targets 28.7%\n"
        "  data: 2 task(s); passes over each in these steps:\n"
        "    task_0: 100.00 passes (200 examples, 50.0% of the mixture)\n"
        "    task_1: 100.00 passes (200 examples, 50.0% of the mixture)"
    )


def test_start_report_fits_80_columns_and_never_splits_a_name():
    given = data(2)
    name = "a_dataset_with_a_very_long_name_and_a_prompt_with_an_even_longer_name_than_the_dataset"
    given.shares = lambda: [TaskShare(name, rate=1.0, examples=200, served=0)]
    found = lines(given)
    assert f"    {name}:" in found
    assert max(len(line) for line in found if name not in line) <= 80


def test_start_report_says_how_memory_was_computed_with_v():
    before = logging.get_verbosity()
    try:
        logging.set_verbosity(logging.INFO)
        assert "    (a guess)" in lines(data(2))
    finally:
        logging.set_verbosity(before)
    assert "    (a guess)" not in lines(data(2))


def test_start_report_shows_unknown_tokens():
    given = data(2)
    given.filling = dataclasses.replace(given.filling, unknown=0.25)
    first, *_ = (line for line in lines(given) if line not in lines(data(2)))
    assert first.startswith("  unknown tokens: 25.0% of the first targets have some")


def test_start_report_lists_twelve_tasks_and_unknown_sizes():
    found = lines(data(14, examples=None))
    assert found[-1] == "    ... and 2 more"
    assert found[-2] == "    task_11: ? passes (unknown size, 7.1% of the mixture)"


def test_start_report_of_a_user_dataset_has_no_task_lines():
    filled = types.SimpleNamespace(filling=None, shares=list)
    assert len(lines(filled)) == 5
