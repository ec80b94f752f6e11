"""The settings of evaluations in gin: `t0.evaluation`, `t0.score_eval`, and T5's own.

    EvaluationSettings().engine             # "tensorflow"
    RankEvaluationSettings().dtype          # "float32"
    reading_facts(), first_records()        # the parameters of T5's `mesh_eval_dataset_fn`

Gin must have been parsed. The values are those that it binds, or the defaults.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from t0.compat import gin
from t0.config.bindings import bound
from t0.config.plain_data import Count, Positive
from t0.errors import UserError
from t0.evaluation import ranking
from t0.evaluation.records import sample_facts
from t0.tasks.few_shot_tasks import few_shot_facts

# The parameters of `mesh_eval_dataset_fn` that select a task's records.
_READING = ("num_eval_examples", "shuffle_eval_examples", "seed", "use_cached")

EngineName = Literal["tensorflow", "torch"]
DeviceName = Literal["auto", "cuda", "cpu"]
# The class is registered with gin here and not in its own module, because the PyTorch engine uses
# the class without gin.
RankEvaluationSettings = gin.external_configurable(
    ranking.RankEvaluationSettings, "score_eval", module="t0"
)


@gin.configurable("evaluation", module="t0")
@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Settings of every kind of evaluation in modes `eval` and `score_eval`.

    Attributes:
      examples: the maximum number of examples per task. They are a random sample, with the same
        rows for all prompts of a dataset. For perplexity, they are the first examples. None for
        all.
      tasks: the tasks to evaluate instead of the mixture's tasks.
      source: the checkpoint's origin, such as a hub name with its revision. It is recorded in
        results files.
      name: the checkpoint's name as the user typed it, for results and reports.
      written_predictions: the maximum number of decoded examples per task that are written to the
        predictions file. The metrics include all examples. None for all.
      decoded: a folder with files `<task>_<step>.jsonl` of texts that another engine has decoded.
        If it is set, the run only computes the metrics of these texts.
      engine: the engine that computes scores, texts and losses: "tensorflow" or "torch".
      device: the device of the engine "torch": "cuda", "cpu", or "auto" for CUDA if there is a GPU.
    """

    examples: Positive | None = None
    tasks: Sequence[str] = ()
    source: str | None = None
    name: str | None = None
    written_predictions: Count | None = None
    decoded: str | None = None
    engine: EngineName = "tensorflow"
    device: DeviceName = "auto"


def refuse_shuffling(reason: str) -> None:
    """Raises a UserError if the evaluation examples are shuffled.

    Args:
      reason: a clause for the message that explains why their order must not change.
    """
    if bound("mesh_eval_dataset_fn.shuffle_eval_examples"):
        raise UserError(
            f"mesh_eval_dataset_fn.shuffle_eval_examples is True, but {reason}: set it to False. "
            "For a random sample of 500 rows: --gin_param='t0.evaluation.examples = 500'"
        )


def refuse_settings(reason: str) -> None:
    """Raises a UserError if `t0.evaluation` is set in a run that Mesh TensorFlow evaluates.

    Args:
      reason: a clause for the message that explains why Mesh TensorFlow evaluates.
    """
    settings = dataclasses.asdict(EvaluationSettings())
    defaults = {field.name: field.default for field in dataclasses.fields(EvaluationSettings)}
    for name, value in settings.items():
        if value and value != defaults[name]:
            raise UserError(
                f"t0.evaluation.{name} is {value!r:.80}, but {reason}, which does not read it; set "
                f"it to {defaults[name]!r}, or use mode 'eval' without --tpu"
            )


def given_facts() -> dict[str, Any]:
    """Returns the settings that differ from their defaults. Results files record them as facts.

    The number and the seed of exemplars are facts of few-shot tasks.
    """
    settings = EvaluationSettings()
    engine = settings.engine if settings.engine != "tensorflow" else None
    facts = {"name": settings.name, "source": settings.source, "engine": engine}
    stated = {name: value for name, value in facts.items() if value}
    return stated | sample_facts(settings.examples) | few_shot_facts(settings.tasks)


def reading_facts() -> dict[str, Any]:
    """Returns the parameters of `mesh_eval_dataset_fn` that gin binds and that select records."""
    return {name: bound(f"mesh_eval_dataset_fn.{name}") for name in _READING}


def first_records() -> int | None:
    """Returns the number of records of each task that are evaluated; None for all of them.

    Raises:
      UserError: `mesh_eval_dataset_fn.num_eval_examples` is not a number of records.
    """
    count = bound("mesh_eval_dataset_fn.num_eval_examples")
    if count is not None and (type(count) is not int or not count):
        raise UserError(
            f"mesh_eval_dataset_fn.num_eval_examples is {count!r}; expected a whole number from 1, "
            "or -1 for all examples"
        )
    return count if count and count > 0 else None
