"""The loop over steps begins at the position that the run's manifest gives."""

import types

import pytest
import tiny_caches
import tiny_training as tiny

from t0.feeding import manifest
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.training.model_directory import Keep
from t0.training.start_report import NO_POSITION, RunSize
from t0.training.stepping import LoopOptions, Stepping
from t0.training.stopping import TimeLimit

ROWS = 4


@pytest.fixture
def stepping(tmp_path):
    """Makes the loop of one process; `wait` is called while it waits for the others."""

    def make(data=None, wait=lambda: None, prints=True, **options):
        engine = types.SimpleNamespace(
            checkpoint=lambda step: f"step {step}", max_over_processes=lambda number: wait()
        )
        return Stepping(
            engine,
            data or open_training_data(tiny_caches.data_spec(tmp_path / "cache")),
            LoopOptions(100, seed=3, **options),
            size=RunSize(ROWS, tiny_caches.LENGTHS),
            model_dir=str(tmp_path),
            keep=Keep(),
            save_every=None,
            prints=prints,
        )

    return make


def resume(stepping, step, record=None):
    stepping.resume(step, record, TimeLimit(None))


def test_stepping_says_that_a_checkpoint_has_no_position(stepping, tmp_path, capsys):
    resume(stepping(tiny.made_up_data()), 7)
    assert capsys.readouterr().out == f"{NO_POSITION}\n"
    resume(stepping(), 7)
    assert capsys.readouterr().out == f"{NO_POSITION}\n"
    assert manifest.read(str(tmp_path)).start == Start(step=7)
    resume(stepping(), 9)  # now the manifest says where it begins
    assert capsys.readouterr().out == ""


def test_stepping_only_one_process_reads_the_caches_for_a_new_manifest(
    stepping, tmp_path, monkeypatch
):
    build, calls = manifest.build, []
    monkeypatch.setattr(manifest, "build", lambda *given: calls.append(given) or build(*given))
    stepping(prints=False).begin(0)
    assert calls == [] and manifest.read(str(tmp_path)) is None
    stepping().begin(0)
    assert len(calls) == 1 and manifest.read(str(tmp_path)).start == Start()


def test_stepping_all_processes_read_the_manifest_before_it_changes(stepping, tmp_path):
    stepping().begin(0)
    before = (tmp_path / manifest.MANIFEST).read_text()
    waits = []

    def wait():
        waits.append((tmp_path / manifest.MANIFEST).read_text())
        return 0

    changed = open_training_data(tiny_caches.data_spec(tmp_path / "cache", window_rows=50))
    record = {"began": 0, "seed": 3, "position": changed.locate(10, ROWS)}
    resume(stepping(changed, wait, allow_config_change=True), 10, record)
    assert waits == [before]
    assert (tmp_path / manifest.MANIFEST).read_text() != before
