"""Opens training data: what SeqIO's registries and gin say, as a specification of plain data.

    spec = data_spec("t0_train", {"inputs": 1024, "targets": 256}, use_cached=True, seed=7)
    data = open_data(spec)                           # a TrainingData
    data = open_dataset_function(mesh_train_dataset_fn, 7, sequence_length=lengths)
    held_out = open_split(data, "validation")        # None if no task has it

Also the checks before a run: that its mixture exists, is cached where it must be and has the split,
and what a user should know of it. Nothing after this module needs SeqIO or TensorFlow, but for
tasks without a cache (`t0.feeding.live`).
"""

import itertools
import json
import shlex
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0 import compat
from t0.compat import gin, seqio
from t0.compat import tf1 as tf
from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
from t0.errors import UserError, unknown_name
from t0.feeding.live import DatasetBatches, live_source, tokenises_text
from t0.feeding.objectives import objective_of
from t0.feeding.reading import Source
from t0.feeding.training_data import TrainingData, open_training_data
from t0.files import paths
from t0.sources import data_dirs
from t0.tasks.recipe_tasks import RecordSource

# The records of a task whose targets are measured before a run: a second's work.
MEASURED = 10_000
# The subfolders of a data folder that become tasks, named after them.
RECIPES = ("text", "sni", "qa", "mt")


def known_mixture(name: str) -> seqio.Mixture | seqio.Task:
    """Returns the mixture or task called `name`.

    Raises:
      UserError: naming the closest mixtures and tasks.
    """
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        more = "List them with: t0 tasks (is --module_import right?)"
        kind = name.partition("_")[0]
        if kind in RECIPES:
            folders = ", ".join(map(str, data_dirs())) or "none"
            more = (
                f"{kind}_* are tasks of t0.recipes, made of a folder {kind}/ in a data folder; the "
                f"data folders (--data_dir or T0_DATA_DIR): {folders}"
            )
        raise unknown_name("mixture or task", name, names, more)
    return seqio.get_mixture_or_task(name)


@gin.configurable("packing", module="t0")
def window(rows: int = 512) -> int:
    """Returns the rows' worth of examples that are packed together (gin: `packing.rows`)."""
    return rows


def data_spec(
    mixture_or_task_name: str,
    sequence_length: Mapping[str, int],
    *,
    dataset_split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    use_cached: bool = False,
    pack: bool = True,
    default_seed: int = 0,
) -> DataSpec:
    """Returns what a mixture is, as plain data; takes what T5's `mesh_train_dataset_fn` takes.

    Args:
      mixture_or_task_name: registered with SeqIO.
      sequence_length: tokens of a row for each feature.
      dataset_split: which split.
      shuffle: whether examples are shuffled.
      seed: of everything random about the data; `default_seed` where None.
      use_cached: whether the tasks' caches are read.
      pack: whether several examples share a row.
      default_seed: the run's.

    Raises:
      UserError: for an unknown mixture, or a cache that cannot be read.
    """
    mixture = known_mixture(mixture_or_task_name)
    tasks = [t for t in seqio.get_subtasks(mixture) if dataset_split in t.splits]
    given = mixture.output_features
    names = [name for name in given if name in sequence_length]
    names.sort(key=lambda name: name != "inputs")
    lengths = {name: sequence_length[name] for name in names}
    return DataSpec(
        mixture=mixture_or_task_name,
        split=str(dataset_split),
        tasks=tuple(
            task_spec(
                task,
                dataset_split,
                lengths,
                rate=mixture.get_rate(task) if len(tasks) > 1 else 1.0,
                use_cached=use_cached,
            )
            for task in tasks
        ),
        lengths=lengths,
        ends_in_eos=tuple(name for name in names if given[name].add_eos),
        pack=pack,
        shuffle=shuffle,
        seed=default_seed if seed is None else int(seed),
        window_rows=window(),
        use_cached=use_cached,
    )


def task_spec(
    task: seqio.Task,
    split: str,
    lengths: Mapping[str, int],
    *,
    use_cached: bool,
    rate: float = 1.0,
) -> TaskSpec:
    """Returns what a task of a mixture is, as plain data.

    Args:
      task: SeqIO's.
      split: which is read.
      lengths: feature -> tokens.
      use_cached: whether the task's cache is read.
      rate: how often it is drawn.

    Raises:
      UserError: if the lengths or the vocabulary do not fit its objective, or the cache is not
        there.
    """
    objective = objective_of(task, lengths)
    if not use_cached and objective is not None and not tokenises_text(task):
        objective = None
    files, examples = (), None
    if use_cached and (objective is not None or _all_is_cached(task)):
        files, examples = cache_files(task, split)
    return TaskSpec(
        name=task.name,
        rate=float(rate),
        features={
            name: FeatureSpec(feature.add_eos)
            for name in lengths
            if (feature := task.output_features.get(name))
        },
        examples=examples,
        cache_files=files,
        objective=objective,
    )


def _all_is_cached(task: seqio.Task) -> bool:
    """Whether a cache holds the examples: steps after it would have to run on every one."""
    return task.supports_caching and not task.preprocessors[task._cache_step_idx + 1 :]


def cache_files(task: seqio.Task, split: str) -> tuple[tuple[str, ...], int]:
    """Returns the TFRecord files of a split of a task's cache, in order, and its examples.

    Raises:
      UserError: if the task is not cached, or the cache does not say what it holds.
    """
    folder = task.cache_dir
    if not folder:
        raise UserError(f"task {task.name} is not cached")
    count = _number_in(f"{folder}/info.{split}.json", "num_shards")
    examples = _number_in(f"{folder}/stats.{split}.json", "examples")
    names = (f"{folder}/{split}.tfrecord-{i:05d}-of-{count:05d}" for i in range(count))
    return tuple(names), examples


def _number_in(path: str, name: str) -> int:
    try:
        number = json.loads(paths.read_text(path))[name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"the cache's {path} cannot be read: {error!r}") from error
    if type(number) is not int or number < 0:
        raise UserError(f"the cache's {path} has {name} {number!r}; wanted a number")
    return number


def open_data(data: DataSpec) -> TrainingData:
    """Opens what a specification says; tasks without a cache are read through SeqIO."""

    def live(task: TaskSpec, data: DataSpec) -> Source:
        return live_source(seqio.TaskRegistry.get(task.name), task, data)

    return open_training_data(data, live)


def open_split(data: TrainingData | DatasetBatches, split: str) -> TrainingData | None:
    """Returns the same mixture's data of another split, unshuffled; None if no task has it.

    Args:
      data: of a run; of a dataset function of the user's there are no other splits.
      split: which.
    """
    spec: DataSpec | None = data.spec
    if spec is None:
        return None
    tasks = seqio.get_subtasks(known_mixture(spec.mixture))
    if not any(split in task.splits for task in tasks):
        return None
    return open_data(
        data_spec(
            spec.mixture,
            spec.lengths,
            dataset_split=split,
            shuffle=False,
            seed=spec.seed,
            use_cached=spec.use_cached,
            pack=spec.pack,
        )
    )


@gin.configurable("train_dataset_fn", module="t0")
def train_dataset_fn(mixture_or_task_name: str, sequence_length: Any, **arguments: Any) -> Any:
    """T5's `mesh_train_dataset_fn` under a name of ours; both give the same batches."""
    from t0.compat import t5_mesh

    return t5_mesh.mesh_train_dataset_fn(
        mixture_or_task_name=mixture_or_task_name, sequence_length=sequence_length, **arguments
    )


class _NotedMixture:
    """Stands in for a mixture and its dataset in T5's dataset function: notes how it is read."""

    output_features: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self, name: str) -> None:
        self.name = name
        self.reading: dict[str, Any] = {}

    def get_dataset(self, sequence_length: Any, **reading: Any) -> "_NotedMixture":
        del sequence_length
        self.reading = reading
        return self

    def map(self, function: Callable[..., Any], **unused: Any) -> "_NotedMixture":
        del function, unused
        return self


def open_dataset_function(
    train_dataset_fn: Callable[..., Any], default_seed: int, **arguments: Any
) -> TrainingData | DatasetBatches:
    """Opens the data of a run's dataset function: our feeding for T5's, its dataset for others.

    Args:
      train_dataset_fn: as gin binds it; one that returns what T5's does is fed by us, too, and
        one that returns a `TrainingData` of its own gives that.
      default_seed: of the data, where gin binds none.
      **arguments: what Mesh TensorFlow calls it with.
    """

    def make() -> Any:
        return _called(train_dataset_fn, default_seed, **arguments)

    with tf.Graph().as_default():
        found = make()
    if isinstance(found, TrainingData):
        return found
    return open_data(found) if isinstance(found, DataSpec) else DatasetBatches(make)


def _called(train_dataset_fn: Callable[..., Any], default_seed: int, **arguments: Any) -> Any:
    """Returns what a dataset function returns; what T5's function returns is a `DataSpec`.

    T5's `mesh_train_dataset_fn` runs as it is published, so that gin binds its arguments and notes
    them, but over a mixture that only notes how it is read.
    """

    def noted(mixture: _NotedMixture, sequence_length: Any, *, pack: bool, **unused: Any) -> Any:
        del unused
        read = mixture.reading
        return data_spec(
            mixture.name,
            sequence_length,
            dataset_split=read["split"],
            shuffle=read["shuffle"],
            seed=read["seed"],
            use_cached=read["use_cached"],
            pack=pack,
            default_seed=default_seed,
        )

    with (
        compat.replaced("t5_mesh.seqio", _with(seqio, get_mixture_or_task=_NotedMixture)),
        compat.replaced(
            "t5_mesh.transformer_dataset", _with(compat.mesh_dataset, pack_or_pad=noted)
        ),
    ):
        return train_dataset_fn(**arguments)


def _with(module: types.ModuleType, **other: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), **other})


def require_cached(name: str, *, function: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Checks that every task of the mixture `name` is in one of the cache folders.

    Args:
      name: of a mixture or task.
      function: the gin name of the dataset function that reads it, such as
        "mesh_train_dataset_fn".
      settings: flag -> values of this command that the caching command must have too.

    Raises:
      UserError: with the command that makes what is missing.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    missing = [task.name for task in tasks if not task.cache_dir]
    if not missing:
        return
    folders = list(dict.fromkeys(seqio.get_global_cache_dirs()))
    into = folders[-1] if folders else "DIR"
    named = "" if folders else f" and pass --additional_task_cache_dirs={into},"
    raise UserError(
        f"{len(missing)} of the {len(tasks)} tasks of {name} are not cached, the first "
        f"'{missing[0]}' (looked in: {', '.join(folders) or 'no folder was given'}). "
        f"Cache them with:\n  {_caching_command(name, into, settings)}\n{named} or read them live "
        f"with --gin_param='{function}.use_cached = False'"
    )


def _caching_command(name: str, into: str, settings: Mapping[str, Sequence[str]]) -> str:
    flags = [f"--tasks={name}", f"--output_cache_dir={into}"]
    flags += [f"--{flag}={value}" for flag, values in settings.items() for value in values]
    return shlex.join(["seqio_cache_tasks", *flags])


def require_split(name: str, split: str, *, setting: str = "run.dataset_split") -> None:
    """Checks that a task of the mixture `name` has the split; `setting` is gin's name of it.

    Raises:
      UserError: with the splits that there are.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    there = sorted({present for task in tasks for present in task.splits})
    if split not in there:
        raise UserError(
            f"no task of {name} has a split '{split}'; there are: {', '.join(there)} ({setting})"
        )


def notes(name: str, split: str, lengths: Mapping[str, int] | None) -> Iterator[str]:
    """Yields what a user should know of the recipes' tasks in the mixture `name`.

    What a source left out, and how many targets are longer than they may be, in tokens with EOS:
    training sees their beginnings only.

    Args:
      name: of a mixture or task.
      split: which is read.
      lengths: feature -> most tokens; None if nothing is cut.

    Raises:
      UserError: if the data is not sound.
    """
    for task in seqio.get_subtasks(known_mixture(name)):
        if isinstance(task.source, RecordSource) and split in task.splits:
            yield from task.source.notes(split)
            most = (lengths or {}).get("targets")
            if most:
                yield from _long_targets(task, split, most)


def _long_targets(task: seqio.Task, split: str, most: int) -> Iterator[str]:
    feature = task.output_features["targets"]
    looked_at = long = 0
    for record in itertools.islice(task.source.records(split), MEASURED):
        # Of several outputs one is drawn; which, nobody knows yet.
        texts = record["outputs"] if "outputs" in record else [record["targets"]]
        room = most - int(feature.add_eos)
        looked_at += 1
        long += any(len(feature.vocabulary.encode(text)) > room for text in texts)
    if long:
        yield (
            f"{task.name}, {split}: {long:,} of {looked_at:,} targets are longer than {most} "
            "tokens and will be cut"
        )
