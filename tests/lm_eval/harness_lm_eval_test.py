"""The real lm-evaluation-harness on exported prompts, and our evaluation, from the same weights."""

import pytest

from tests.lm_eval import harness_world

pytest.importorskip("lm_eval.evaluator", reason="lm_eval is not in the lock")
pytest.importorskip("torch")

from t0.reports import read_runs


def test_lm_eval_harness_runs_export_and_agrees_with_evaluation(tmp_path):
    harness_world.lay_out(tmp_path)
    harness_world.make_model(tmp_path / "model", tmp_path / "vocab.model")
    harness_world.export(tmp_path, "--output=exported", "--group=mine")
    table = harness_world.lm_eval(tmp_path, "--tasks=mine,weather_own_choices_score_eval")
    assert "|prompt_median|" in table
    harness_world.evaluate(tmp_path)
    ours, theirs = (read_runs([tmp_path / name])[0] for name in ("ours", "theirs"))
    assert len(ours.tasks) == len(theirs.tasks) == 4
    for one, other in zip(ours.tasks, theirs.tasks, strict=True):
        assert one.name == other.name
        for mine, found in zip(one.scores.records(), other.scores.records(), strict=True):
            keys = ("idx", "inputs", "prediction")
            assert [mine[key] for key in keys] == [found[key] for key in keys]
            expected = [choice["log_likelihood"] for choice in mine["choices"]]
            values = [choice["log_likelihood"] for choice in found["choices"]]
            assert values == pytest.approx(expected, abs=1e-4, rel=0)
