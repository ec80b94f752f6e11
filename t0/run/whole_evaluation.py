"""`t0 eval`: which tasks are evaluated, and the command line of the run that does it.

    names = chosen_tasks("t0_eval", "validation")         # the mixture's tasks, or those of a regex
    words = command_line(described, names, Settings(...))  # of t5_mesh_transformer
    command.run(flags.parse(words), argv)

The evaluation is a run of `runs/eval.gin`, so it has that run's checks, results and resumption.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from t0 import sources
from t0.catalogue import SCORE_EVAL
from t0.catalogue.listing import matching
from t0.catalogue.row_preview import T0_LENGTHS
from t0.checkpoints.described import Described
from t0.compat import seqio
from t0.errors import UserError
from t0.mesh import devices
from t0.run.by_kind import PERPLEXITY, kinds_of
from t0.scoring.batching import WHOLE, BatchShard
from t0.scoring.ranking import MAX_TOKENS

PRETRAINING_LENGTHS = {"inputs": 512, "targets": 114}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a whole evaluation.

    Attributes:
      output: the folder for results.
      split: the split.
      lengths: feature -> most tokens; None for T0's, or T5's of pretraining for perplexity.
      examples: the most examples of each task, None for all.
      batch_tokens: the most tokens of a batch; None for this machine's.
      cache_dirs: folders with cached tasks; none to render and tokenise on the way.
      activations: the type of activations.
      shard: the evaluation's part of the batches.
      decode_answers: whether answers to ranked inputs are decoded, too.
    """

    output: str
    split: str = "validation"
    lengths: Mapping[str, int] | None = None
    examples: int | None = None
    batch_tokens: int | None = None
    cache_dirs: Sequence[str] = ()
    activations: str = "float32"
    shard: BatchShard = WHOLE
    decode_answers: bool = False


def chosen_tasks(wanted: str, split: str) -> list[str]:
    """Returns the names of the tasks that a mixture has, or that a regular expression matches.

    A plain task whose rank-evaluation form is chosen too is left out: T0 is evaluated by ranking.

    Raises:
      UserError: if there are none, or none has the split.
    """
    mixtures = {*seqio.MixtureRegistry.names()}
    known = [*seqio.TaskRegistry.names()]
    name = next((one for one in (wanted, wanted + SCORE_EVAL) if one in mixtures), None)
    if name:
        found = [task.name for task in seqio.MixtureRegistry.get(name).tasks]
    elif wanted in known:
        found = [wanted]
    else:
        hint = "List them with: t0 tasks (is --module_import right?)"
        found = matching(wanted, known, mixtures, hint)
    plain = [one for one in found if one + SCORE_EVAL in found]
    if plain:
        print(
            f"{len(plain):,} plain tasks are left out, since their {SCORE_EVAL} forms are ranked; "
            f"to decode one, name it whole: --tasks='{plain[0]}'",
            file=sys.stderr,
        )
    there = [one for one in found if one not in set(plain)]
    with_split = [one for one in there if split in seqio.TaskRegistry.get(one).splits]
    if not with_split:
        splits = sorted({s for one in there for s in seqio.TaskRegistry.get(one).splits})
        raise UserError(
            f"no task of {wanted} has a split '{split}'; there are: {', '.join(splits)}"
        )
    return with_split


def without_absent(names: Sequence[str], split: str, *, skip: bool) -> list[str]:
    """Returns the tasks whose data is here; prompted tasks only are looked at.

    Args:
      names: the tasks.
      split: their split.
      skip: whether tasks without data are left out, and not an error.

    Raises:
      UserError: if data is absent, and `skip` is not set or nothing is left.
    """
    found = {name: seqio.TaskRegistry.get(name).source for name in names}
    prompted = {n: one if hasattr(one, "split_mapping") else None for n, one in found.items()}
    return sources.without_absent(prompted, split, skip=skip)


def command_line(found: Described, names: Sequence[str], settings: Settings) -> list[str]:
    """Returns the words of the run that evaluates a checkpoint on tasks."""
    tasks = [seqio.TaskRegistry.get(name) for name in names]
    only_measured = set(kinds_of(tasks)) == {PERPLEXITY}
    lengths = settings.lengths or (PRETRAINING_LENGTHS if only_measured else T0_LENGTHS)
    features = {feature for task in tasks for feature in task.output_features}
    shard = settings.shard
    lengths = {name: most for name, most in lengths.items() if name in features}
    gin = {
        "MIXTURE_OR_TASK_NAME": names[0],
        "CHECKPOINT_PATH": found.checkpoint,
        "EVAL_OUTPUT_DIR": settings.output,
        "MIXTURE_OR_TASK_SPLIT": settings.split,
        "TASK_FEATURE_LENGTHS": dict(lengths),
        "BATCH_SIZE": _sequences(settings.batch_tokens, sum(lengths.values())),
        "USE_CACHED_TASKS": bool(settings.cache_dirs),
        "t0.evaluation.tasks": list(names),
        "t0.evaluation.examples": settings.examples,
        "t0.evaluation.source": found.source,
    }
    return [
        "t0 eval",
        f"--gin_file={found.gin_file}",
        "--gin_file=runs/eval.gin",
        f"--checkpoint={found.checkpoint}",
        f"--activation_dtype={settings.activations}",
        *([f"--shard_id={shard.id}", f"--num_shards={shard.of}"] if shard != WHOLE else []),
        *(["--decode_answers"] if settings.decode_answers else []),
        *(f"--additional_task_cache_dirs={folder}" for folder in settings.cache_dirs),
        *(f"--gin_param={name} = {value!r}" for name, value in gin.items()),
    ]


def _sequences(batch_tokens: int | None, tokens: int) -> int:
    """Returns the sequences of a batch, a multiple of this machine's GPUs."""
    gpus = len(devices.visible_gpus())
    most = batch_tokens or MAX_TOKENS["gpu" if gpus else "cpu"] * max(1, gpus)
    each = max(1, gpus)
    return max(1, most // tokens // each) * each
