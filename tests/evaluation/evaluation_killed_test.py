"""Killed at any moment and started again, an evaluation ends as if it had not been."""

import json
import os
import shutil
import signal

import pytest

from tests.evaluation import killed_evaluation
from tests.helpers.command_server import CommandServer


@pytest.fixture(scope="module")
def commands():
    """A process that has imported TensorFlow, and forks for each evaluation that is killed."""
    server = CommandServer(dict(os.environ), [killed_evaluation.__name__])
    yield server
    server.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The files of an evaluation that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    killed_evaluation.write_checkpoints(folder)
    return contents(killed_evaluation.run(folder))


def contents(folder):
    """All result files, without the time at which they were made."""
    assert not [path for path in folder.rglob("*") if "unfinished" in path.name]
    assert not list(folder.rglob("*.incomplete-*"))
    found = {path.name: path.read_text() for path in (folder / "scores").glob("*.jsonl")}
    for path in sorted(folder.glob("results_*.json")):
        content = json.loads(path.read_text())
        facts = {k: v for k, v in content["run"].items() if k in ("step", "split", "dtype")}
        found[path.name] = {**content, "run": facts}
    return found


@pytest.mark.parametrize(
    ("write", "line", "kept"),
    [
        # within the scores of the first task
        pytest.param(0, 4, (0, 0), marks=pytest.mark.exhaustive),
        # between the first and the second
        pytest.param(2, 0, (1, 0), marks=pytest.mark.exhaustive),
        # the second's scores are there, its entry is not
        pytest.param(3, 0, (1, 0), marks=pytest.mark.slow),
        # all tasks are scored, the results not written
        pytest.param(6, 0, (3, 0), marks=pytest.mark.exhaustive),
        # within the second task of the second checkpoint
        pytest.param(9, 8, (3, 1), marks=pytest.mark.slow),
    ],
)
def test_resume_of_killed_rank_evaluation(
    finished, commands, tmp_path, capsys, monkeypatch, write, line, kept
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    killed_evaluation.write_checkpoints(tmp_path)
    done = commands.run(
        *(str(tmp_path), str(write), str(line)),
        program=f"{killed_evaluation.__name__}:main",
        environment={"TMPDIR": temporary},
    )
    assert done.status == -signal.SIGKILL, done.err
    # Our temporary files have no names; TensorFlow's generated sources and their bytecode have.
    generated = ("__autograph_generated_file", "__pycache__")
    assert not [path.name for path in temporary.iterdir() if not path.name.startswith(generated)]
    found = killed_evaluation.run(tmp_path)
    printed = capsys.readouterr().out
    for step, number in zip(killed_evaluation.STEPS, kept, strict=True):
        told = f"step {step}: {number} of 3 tasks were finished before"
        assert (told in printed) == (number > 0)
    assert contents(found) == finished
    shutil.rmtree(tmp_path)
