"""Estimates of `seqio_cache_tasks --dry_run`, compared with the cache that the run writes."""

import pytest

from t0.caching import CacheSelection, RecordOptions, Setup, estimate
from t0.errors import UserError

MODULES = ["tests.caching.toy_caching_tasks", "tests.caching.toy_prompted_tasks"]


@pytest.fixture
def printed(with_data, monkeypatch, capsys):
    """Estimates tasks; returns the cells of each line of the table, and the last line."""
    import seqio

    def run(out, *tasks):
        monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
        estimate(CacheSelection(str(out), tasks=tasks), RecordOptions(), Setup(MODULES))
        *table, last = capsys.readouterr().out.splitlines()
        return {cells[0]: cells[1:] for cells in map(str.split, table)}, last

    return run


def test_estimate_equals_the_cache_and_writes_nothing(printed, cache_here, tmp_path):
    tasks = ("weather_plain", "weather_open", "toy_lines")
    table, last = printed(tmp_path / "out", *tasks)
    assert not (tmp_path / "out").exists()
    assert "minutes with --num_workers=" in last and "Nothing was written" in last
    outcomes = [o for o in cache_here(tmp_path / "out", *tasks) if o.split.task != "toy_lines"]
    for name in ("weather_plain", "weather_open"):
        stats = [outcome.stats for outcome in outcomes if outcome.split.task == name]
        records, tokens = (
            sum(each[key] for each in stats for key in keys)
            for keys in (["examples"], ["inputs_tokens", "targets_tokens"])
        )
        assert table[name][1] == f"{records:,}"
        assert float(table[name][2].replace(",", "")) == pytest.approx(tokens, rel=0.02)
    assert table["toy_lines"][1:] == ["?", "?", "?"]  # not prompted: not sampled
    assert printed(tmp_path / "out", "weather_plain")[0] == {
        "task": ["rows", "records", "tokens", "size"],
        "0": ["tasks", "?", "?", "?", "?"],
    }


def test_estimate_refuses_what_the_run_refuses(printed, tmp_path):
    with pytest.raises(UserError, match="'weather_plan'.*'weather_plain'"):
        printed(tmp_path, "weather_plan")
