"""What mode `eval` does with a task, and what it refuses at the start."""

import importlib.util

import pytest
import seqio

from t0.compat import gin
from t0.config.flags import from_values
from t0.errors import UserError
from t0.evaluation.kinds import kinds_of
from t0.evaluation.settings import first_records
from t0.run import models
from t0.run.binding_checks import check_settings
from t0.run.evaluation_checks import check_tasks
from t0.run.parsed_run import ParsedRun


class Task:
    def __init__(self, name, *, texts=(), scores=(), features=("inputs", "targets")):
        self.name = name
        self.predict_metric_fns, self.score_metric_fns = list(texts), list(scores)
        self.metric_fns = [*texts, *scores]
        vocabulary = seqio.ByteVocabulary()
        self.output_features = {name: seqio.Feature(vocabulary) for name in features}
        self.supports_caching = False


RANKED = Task("rte_score_eval", scores=[max])
DECODED = Task("rte", texts=[max])
MEASURED = Task("text_lm", features=("targets",))
LENGTHS = {"inputs": 8, "targets": 8}


def test_evaluation_dispatch_to_rank_decode_or_perplexity():
    kinds = kinds_of([RANKED, DECODED, MEASURED, Task("x", features=("inputs",))])
    names = {kind: [task.name for task in tasks] for kind, tasks in kinds.items()}
    assert names == {
        "rank": ["rte_score_eval"],
        "decode": ["rte"],
        "perplexity": ["text_lm"],
        "": ["x"],
    }
    assert check_tasks([RANKED, DECODED, MEASURED], LENGTHS, on_tpu=False) == [
        "evaluation of 3 task(s): 1 ranked, 1 decoded, 1 measured (perplexity)"
    ]


@pytest.mark.parametrize(
    ("tasks", "lengths", "on_tpu", "message"),
    [
        ([Task("x", features=("inputs",))], LENGTHS, False, "task x cannot be evaluated"),
        ([DECODED, MEASURED], None, False, "text_lm has no metrics.*TASK_FEATURE_LENGTHS"),
        ([MEASURED], {"inputs": 8}, False, "a length of targets.*\"{'targets': 114}\""),
        ([DECODED, RANKED], LENGTHS, True, "rte_score_eval is for rank.*score_eval.gin"),
        ([MEASURED], LENGTHS, True, "text_lm is for perplexity.*perplexity_eval.gin"),
    ],
)
def test_evaluation_dispatch_refuses_tasks_it_cannot_evaluate(tasks, lengths, on_tpu, message):
    with pytest.raises(UserError, match=message):
        check_tasks(tasks, lengths, on_tpu=on_tpu)


def test_rank_evaluation_of_a_language_model_is_refused():
    gin.parse_config("run.model_type = 'lm'")
    with pytest.raises(UserError, match=r"run.model_type is 'lm'.*score_eval.gin"):
        check_tasks([RANKED], LENGTHS, on_tpu=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num_eval_examples = 0", "num_eval_examples is 0; expected a whole number from 1, or -1"),
        ("num_eval_examples = '5'", "num_eval_examples is '5'; expected a whole number"),
        ("shuffle_eval_examples = True", "shuffle_eval_examples is True, but Mesh .* a seed"),
    ],
)
def test_evaluation_refuses_examples_that_it_cannot_join(setting, message):
    gin.parse_config(f"mesh_eval_dataset_fn.{setting}")
    with pytest.raises(UserError, match=message):
        check_settings(ParsedRun(from_values({}), "eval"))
        check_tasks([DECODED], LENGTHS, on_tpu=True)


def test_number_of_evaluation_examples_is_all_if_negative():
    assert first_records() is None
    for number, expected in ((-1, None), (5, 5), (None, None)):
        gin.parse_config(f"mesh_eval_dataset_fn.num_eval_examples = {number}")
        assert first_records() == expected


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
@pytest.mark.parametrize(
    ("engine", "device", "flag"),
    [("torch", "auto", "--engine=torch"), ("auto", "cpu", "--device=cpu")],
)
def test_evaluation_engine_torch_without_pytorch_is_one_line(engine, device, flag):
    with pytest.raises(UserError, match=f"{flag}: PyTorch is not installed: .*torch") as caught:
        models.choose_engine(engine, device)
    assert "\n" not in str(caught.value)
