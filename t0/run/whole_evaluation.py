"""Chooses the tasks of `t0 eval`, and the flags of the run that evaluates them.

    names = choose_tasks("t0_eval", "validation")         # tasks of a mixture or of a regex
    values = flag_values(described, WholeEvaluation("out", "t5", names))
    command.run(flags.from_values(values), argv, working_directory=False)

The evaluation is a run with the gin file `runs/eval.gin`. It has the same checks and results as
other runs with this file, and it can be resumed.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from t0 import sources
from t0.catalogue import SCORE_EVAL
from t0.catalogue.listing import matching
from t0.catalogue.row_preview import T0_LENGTHS
from t0.checkpoints.prepared_checkpoint import Described
from t0.compat import seqio
from t0.config.flags import bindings_of
from t0.errors import UserError
from t0.evaluation.batching import WHOLE, BatchShard
from t0.evaluation.kinds import PERPLEXITY, kinds_of
from t0.evaluation.ranking import MAX_TOKENS
from t0.mesh import devices
from t0.prompts.few_shot import FewShot, TextMeasure
from t0.run import models
from t0.tasks.few_shot_tasks import add_few_shot_tasks

PRETRAINING_LENGTHS = {"inputs": 512, "targets": 114}


@dataclasses.dataclass(frozen=True)
class WholeEvaluation:
    """The evaluation that the flags of `t0 eval` describe.

    Attributes:
      output: the folder for results.
      name: the checkpoint's name as the user typed it.
      tasks: the names of the tasks.
      split: the split.
      lengths: feature -> maximum number of tokens. None means T0's lengths, or the lengths of T5's
        pretraining for perplexity. For a model that is not a T5, None means that nothing is
        truncated. In this case, a text that is too long is an error.
      examples: the maximum number of examples per task; None for all.
      batch_tokens: the maximum number of tokens per batch; None for this machine's default.
      cache_dirs: folders with cached tasks. If empty, tasks are rendered and tokenized during
        evaluation.
      allow_stale_cache: whether to read a cache whose prompts or data have changed since caching.
      modules: the modules that register the tasks.
      data_dirs: folders with datasets.
      activations: the type of activations.
      shard: the shard to evaluate, if the batches are divided into shards.
      decode_answers: whether to also decode an answer to each input of ranked tasks.
      join: the way in which input and choice are joined for a decoder-only model, a name in
        `look_alikes.JOINS`; None for the default.
      engine: "tensorflow" or "torch".
      device: the device of the engine "torch": "auto", "cuda" or "cpu".
      few_shot: how exemplars are put before the inputs of the tasks; None for zero-shot prompts.
    """

    output: str
    name: str = ""
    tasks: Sequence[str] = ()
    split: str = "validation"
    lengths: Mapping[str, int] | None = None
    examples: int | None = None
    batch_tokens: int | None = None
    cache_dirs: Sequence[str] = ()
    allow_stale_cache: bool = False
    modules: Sequence[str] = ()
    data_dirs: Sequence[str] = ()
    activations: str = "float32"
    shard: BatchShard = WHOLE
    decode_answers: bool = False
    join: str | None = None
    engine: str = "tensorflow"
    device: str = "auto"
    few_shot: FewShot | None = None

    def with_few_shot_tasks(self, measure: TextMeasure) -> "WholeEvaluation":
        """Returns the evaluation of the few-shot forms of the tasks, which it registers.

        Args:
          measure: how the texts are measured in the tokens of the model.

        Raises:
          UserError: a task cannot have few-shot prompts.
        """
        if self.few_shot is None:
            return self
        names = add_few_shot_tasks(self.tasks, self.few_shot, measure)
        return dataclasses.replace(self, tasks=names)


def choose_tasks(expression: str, split: str) -> list[str]:
    """Returns the names of a mixture's tasks, or of the tasks that match a regular expression.

    If a plain task and its rank-evaluation form both match, only the rank-evaluation form is
    returned, because T0 is evaluated by ranking.

    Raises:
      UserError: no task matches, or no task that matches has the split.
    """
    mixtures = {*seqio.MixtureRegistry.names()}
    registered = [*seqio.TaskRegistry.names()]
    mixture = next(
        (name for name in (expression, expression + SCORE_EVAL) if name in mixtures), None
    )
    if mixture:
        names = [task.name for task in seqio.MixtureRegistry.get(mixture).tasks]
    elif expression in registered:
        names = [expression]
    else:
        hint = "List them with: t0 tasks (is --module_import right?)"
        names = matching(expression, registered, mixtures, hint)
    plain = [name for name in names if name + SCORE_EVAL in names]
    if plain:
        print(
            f"{len(plain):,} plain tasks are skipped, because their {SCORE_EVAL} forms are ranked; "
            f"to decode one, use its full name: --tasks='{plain[0]}'",
            file=sys.stderr,
        )
    selected = [name for name in names if name not in set(plain)]
    with_split = [name for name in selected if split in seqio.TaskRegistry.get(name).splits]
    if not with_split:
        splits = sorted({s for name in selected for s in seqio.TaskRegistry.get(name).splits})
        raise UserError(
            f"no task of {expression} has a split '{split}'; there are: {', '.join(splits)}"
        )
    return with_split


def drop_absent(names: Sequence[str], split: str, *, skip: bool) -> list[str]:
    """Returns the tasks whose data is on this machine. Only prompted tasks are checked.

    Args:
      names: the tasks.
      split: their split.
      skip: whether to skip tasks without data. If False, such a task raises an error.

    Raises:
      UserError: data is missing and `skip` is False, or no task has data.
    """
    sources_by_task = {name: seqio.TaskRegistry.get(name).source for name in names}
    prompted = {
        name: source if hasattr(source, "split_mapping") else None
        for name, source in sources_by_task.items()
    }
    return sources.without_absent(prompted, split, skip=skip)


def input_length(evaluation: WholeEvaluation) -> int:
    """Returns the maximum number of tokens of the inputs of prompted tasks, for a T5."""
    return {**T0_LENGTHS, **(evaluation.lengths or {})}["inputs"]


def flag_values(description: Described, evaluation: WholeEvaluation) -> dict[str, Any]:
    """Returns the flags of the run that evaluates a checkpoint; see `flags.from_values`."""
    tasks = [seqio.TaskRegistry.get(name) for name in evaluation.tasks]
    only_measured = set(kinds_of(tasks)) == {PERPLEXITY}
    defaults = PRETRAINING_LENGTHS if only_measured else T0_LENGTHS
    lengths = {**defaults, **(evaluation.lengths or {})}
    features = {feature for task in tasks for feature in task.output_features}
    lengths = {name: most for name, most in lengths.items() if name in features}
    gin = {
        "MIXTURE_OR_TASK_NAME": evaluation.tasks[0],
        "CHECKPOINT_PATH": description.checkpoint,
        "EVAL_OUTPUT_DIR": evaluation.output,
        "MIXTURE_OR_TASK_SPLIT": evaluation.split,
        "TASK_FEATURE_LENGTHS": dict(lengths),
        "BATCH_SIZE": choose_batch_size(
            evaluation.engine, evaluation.device, sum(lengths.values()), evaluation.batch_tokens
        ),
        "USE_CACHED_TASKS": bool(evaluation.cache_dirs),
        "t0.evaluation.tasks": list(evaluation.tasks),
        "t0.evaluation.examples": evaluation.examples,
        "t0.evaluation.source": description.source,
        "t0.evaluation.name": evaluation.name,
        "t0.evaluation.engine": evaluation.engine,
        "t0.evaluation.device": evaluation.device,
    }
    activations = evaluation.activations
    if evaluation.engine == "torch":  # "auto" can mean another type than with TensorFlow
        activations = models.activation_type(activations, evaluation.device)
    flags = {
        "gin_file": [description.gin_file, "runs/eval.gin"],
        "gin_param": bindings_of(gin),
        "checkpoint": description.checkpoint,
        "activation_dtype": activations,
        "decode_answers": evaluation.decode_answers,
        "allow_stale_cache": evaluation.allow_stale_cache,
        "additional_task_cache_dirs": list(evaluation.cache_dirs),
        "module_import": list(evaluation.modules),
        "data_dir": list(evaluation.data_dirs),
        "vocab": os.environ.get("T0_VOCAB"),
    }
    flags = {name: value for name, value in flags.items() if value}
    if evaluation.shard != WHOLE:
        flags |= {"shard_id": evaluation.shard.id, "num_shards": evaluation.shard.of}
    return flags


def choose_batch_size(engine: str, device: str, tokens: int, most: int | None = None) -> int:
    """Returns the number of sequences per batch, which is a multiple of the number of used GPUs.

    Args:
      engine: "tensorflow" or "torch".
      device: the device of the engine "torch".
      tokens: the maximum number of tokens per sequence.
      most: the maximum number of tokens per batch; None for this machine's default.
    """
    on_torch = engine == "torch"
    gpus = int(models.uses_gpu(device)) if on_torch else len(devices.visible_gpus())
    most = most or MAX_TOKENS["gpu" if gpus else "cpu"] * max(1, gpus)
    each = max(1, gpus)
    return max(1, most // tokens // each) * each
