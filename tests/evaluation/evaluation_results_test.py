import json
import resource
from pathlib import Path

import numpy as np
import pytest

from t0.errors import UserError
from t0.evaluation.ranked_examples import (
    AnswerChoice,
    MultipleChoiceExample,
    RankTaskFacts,
    count_examples,
)
from t0.evaluation.records import ChoiceRecord
from t0.evaluation.results import (
    CheckpointResults,
    lines_path,
    score_line,
    write_lines,
    write_results,
    write_whole,
)


def example(idx, texts, right):
    return MultipleChoiceExample(
        idx,
        tuple(
            AnswerChoice(
                text=text, tokens=np.array([4 + i, 1]), is_correct=i in right, inputs=np.array([3])
            )
            for i, text in enumerate(texts)
        ),
        text="the input",
    )


def test_scores_file_line_of_an_example(tmp_path):
    examples = [example(0, ["Ja", "Né"], [1]), example(3, ["a", "b", "c"], [])]
    scores = [np.array([-2.5, -1.0], np.float32), np.array([-3.0, -3.0, -4.0], np.float32)]
    path = lines_path(str(tmp_path), "scores", "task", 40)
    assert path == str(tmp_path / "scores" / "task_40.jsonl")
    write_lines(path, map(score_line, examples, scores))
    first, second = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    assert first == {
        "idx": 0,
        "inputs": "the input",
        "choices": [
            {"text": "Ja", "log_likelihood": -2.5, "tokens": 2, "characters": 2},
            {"text": "Né", "log_likelihood": -1.0, "tokens": 2, "characters": 2},
        ],
        "gold": 1,
        "prediction": 1,
    }
    # Of equal scores the first is taken, as T5's metric does.
    assert (second["idx"], second["gold"], second["prediction"]) == (3, -1, 0)


def test_results_file_has_schema_run_and_tasks(tmp_path):
    path = write_results(str(tmp_path / "new"), 40, {"step": 40}, {"task": {"examples": 2}})
    content = json.loads(Path(path).read_text())
    assert content == {"schema": 1, "run": {"step": 40}, "tasks": {"task": {"examples": 2}}}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["results_40.json"]


def test_atomic_write_that_fails_keeps_the_old_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot write .*file/results"):
        write_whole(str(tmp_path / "file" / "results"), ["x"])
    write_whole(str(tmp_path / "results"), ["old"])
    write_whole(str(tmp_path / "results"), ["new"])
    assert (tmp_path / "results").read_text() == "new"


def test_atomic_write_interrupted_leaves_no_file(tmp_path):
    def lines():
        yield "first\n"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(str(tmp_path / "scores"), lines())
    assert not list(tmp_path.iterdir())


def test_atomic_write_on_full_disk_keeps_the_old_file(tmp_path):
    path = tmp_path / "scores"
    write_whole(str(path), ["old"])
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Files may no longer grow beyond this: a write fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
        with pytest.raises(
            UserError, match=f"cannot write {path}: the disk is full. Finished tasks are"
        ):
            write_whole(str(path), ("x" * 999 + "\n" for _ in range(5000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_resume_uses_kept_entry_only_if_made_from_same_inputs(tmp_path):
    run = {"step": 40, "dtype": "float32", "sequence_length": {"inputs": 3}}
    first = example(0, ["a"], [0])
    read = lambda: iter([ChoiceRecord(0, 0, *np.ones((2, 1), np.int32), True, "a")])  # noqa: E731
    task = count_examples(RankTaskFacts("task", "mine", "", []), read, None)

    def unfinished(**changed):
        return CheckpointResults(str(tmp_path), run | changed, ["task"]).unfinished

    assert unfinished()
    results = CheckpointResults(str(tmp_path), run, ["task"])
    results.add(task, [(first, np.array([-1.0], np.float32))])
    assert not unfinished()
    # Its scores must be there, too, and whole.
    path = tmp_path / "scores" / "task_40.jsonl"
    text = path.read_text()
    path.unlink()
    assert unfinished()
    path.write_text(text[:-9])
    assert unfinished()
    path.write_text(text)
    assert not unfinished()
    assert unfinished(dtype="bfloat16")
    assert unfinished(step=41)
    assert unfinished(model_settings_sha256="5f3c")
    kept = tmp_path / "unfinished_40" / "task.json"
    content = json.loads(kept.read_text())
    del content["made_from"]["model_settings_sha256"]  # an earlier version began the evaluation
    kept.write_text(json.dumps(content))
    assert not unfinished(model_settings_sha256="5f3c")
    results.remove_unfinished()
    assert unfinished()
    assert not (tmp_path / "unfinished_40").exists()


def test_scores_file_line_has_the_document_if_known():
    choice = AnswerChoice(text="yes", tokens=[1], is_correct=True, inputs=[3])
    lines = [
        score_line(MultipleChoiceExample(5, (choice,), "in", document), [-1.0])
        for document in (None, 3)
    ]
    assert "document" not in lines[0]
    assert lines[1]["document"] == 3
    assert json.loads(json.dumps(lines[1]))["prediction"] == 0
