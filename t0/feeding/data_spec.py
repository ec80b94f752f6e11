"""Opens training data: builds a plain-data specification from SeqIO's registries and gin.

    spec = data_spec("t0_train", {"inputs": 1024, "targets": 256}, use_cached=True, seed=7)
    data = open_data(spec)                           # a TrainingData
    data = open_dataset_function(mesh_train_dataset_fn, 7, sequence_length=lengths)
    held_out = open_split(data, "validation")        # None if no task has this split

This module also checks before a run that a mixture exists, has the split, and is cached if the run
needs a cache. It also makes notes for the user about the mixture's tasks. Reading the data needs
SeqIO and TensorFlow only for tasks without a cache (`t0.feeding.uncached`).
"""

import contextlib
import dataclasses
import functools
import math
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t0.caching.cache_plan import NO_RECORD
from t0.caching.provenance import changes_of
from t0.caching.row_numbers import ExampleRows, cached_rows, rendered_rows
from t0.caching.verify import verify_cache
from t0.catalogue.listing import read_listing
from t0.compat import gin, seqio
from t0.compat import tf1 as tf
from t0.config import specification
from t0.config.bindings import bound, read_arguments
from t0.config.plain_data import Rows
from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
from t0.errors import UserError, say, short_reason, unknown_name
from t0.feeding.objectives import eos_of, instructions_of, objective_of
from t0.feeding.random_access import rows_as_read
from t0.feeding.reading import ExampleSource
from t0.feeding.training_data import TrainingData, open_training_data
from t0.feeding.uncached import (
    DatasetBatches,
    checked_tsv_files,
    live_source,
    own_sampling,
    tokenizes_text,
)
from t0.files import paths
from t0.files.untrusted import parsed_json
from t0.tasks.denoisers import describe_mode
from t0.tasks.gin_mixtures import register_gin_mixtures
from t0.tasks.instruction_tasks import InstructionSettings
from t0.tasks.prompted_tasks import expand_choices, is_prompted_source
from t0.tasks.recipe_tasks import RecordSource
from t0.tasks.vocabulary import check_vocabularies

_REQUESTS_AT_ONCE = 16


def known_mixture(name: str) -> seqio.Mixture | seqio.Task:
    """Returns the mixture or task with the name `name`.

    Raises:
      UserError: if there is no such mixture or task (the message has the closest names), or if its
        vocabulary does not fit T5.
    """
    if not name:
        raise UserError(
            f"the name of the mixture or task is {name!r} (MIXTURE_NAME, MIXTURE_OR_TASK_NAME), so "
            "there is no data to read. Set it with --gin.MIXTURE_NAME=\"'NAME'\", and the module "
            "that registers it with --module_import"
        )
    register_gin_mixtures()
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        more = (
            "List them with: t0 tasks (is --module_import right? t0.recipes registers the tasks of "
            "folders such as text/ in --data_dir)"
        )
        if name in _catalogue_names():
            raise UserError(
                f"'{name}' is registered by t0.seqio_tasks, which is not imported: add "
                "--module_import=t0.seqio_tasks"
            )
        raise unknown_name("mixture or task", name, names, more)
    mixture = seqio.get_mixture_or_task(name)
    check_vocabularies(mixture)
    return mixture


def _catalogue_names() -> set[str]:
    """Returns the names of the mixtures and tasks that t0.seqio_tasks registers when imported."""
    listing = read_listing()
    return {*listing.mixtures, *listing.tasks}


ChoiceLosses = gin.external_configurable(specification.ChoiceLosses, "choice_losses", module="t0")


@gin.configurable("packing", module="t0")
def window(rows: Rows = 512) -> int:
    """Returns the number of rows whose examples are packed together (gin: `packing.rows`)."""
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
    choices: bool = False,
) -> DataSpec:
    """Builds the specification of a mixture's data.

    The arguments have the same names as in T5's `mesh_train_dataset_fn`.

    Args:
      mixture_or_task_name: a mixture or task that is registered with SeqIO.
      sequence_length: feature -> the number of tokens of a row.
      shuffle: whether to shuffle examples.
      seed: the seed of all randomness in the data; None to use `default_seed`.
      use_cached: whether to read the tasks' caches.
      pack: whether to pack several examples into a row.
      default_seed: the run's seed, which is used if `seed` is None.
      choices: whether each example has all of its answer choices.

    Raises:
      UserError: if the mixture is unknown, or a cache cannot be read.
    """
    mixture = known_mixture(mixture_or_task_name)
    tasks = [t for t in seqio.get_subtasks(mixture) if dataset_split in t.splits]
    output_features = mixture.output_features
    names = [name for name in output_features if name in sequence_length]
    if tasks and not all(output_features[name].required for name in names):
        present = _present_features(tasks[0], sequence_length, dataset_split, use_cached=use_cached)
        names = [x for x in names if output_features[x].required or x in present]
    names.sort(key=lambda name: name != "inputs")
    lengths = {name: sequence_length[name] for name in names}
    return DataSpec(
        mixture=mixture_or_task_name,
        split=str(dataset_split),
        tasks=tuple(
            dataclasses.replace(
                task_spec(
                    task,
                    dataset_split,
                    lengths,
                    rate=rate_of(mixture, task) if len(tasks) > 1 else 1.0,
                    use_cached=use_cached,
                ),
                choices=choices,
            )
            for task in tasks
        ),
        lengths=lengths,
        ends_in_eos=tuple(name for name in names if output_features[name].add_eos),
        pack=pack,
        shuffle=shuffle,
        seed=default_seed if seed is None else int(seed),
        window_rows=window(),
        use_cached=use_cached,
    )


def _present_features(
    task: seqio.Task, lengths: Mapping[str, int], split: str, *, use_cached: bool
) -> set[str]:
    """Returns the features of a task's examples, some of which may be missing if not required.

    All tasks of a mixture have the same features. T5 also drops a missing feature, such as the
    inputs of a language modeling task.
    """
    if objective_of(task, lengths) is not None:
        # It makes each feature that the task lists. SeqIO would trace T5's graph for seconds.
        return set(task.output_features)
    with tf.Graph().as_default():
        dataset = task.get_dataset(
            lengths, split=split, use_cached=use_cached, shuffle=False, num_epochs=1
        )
        return set(tf.data.get_output_types(dataset))


def rate_of(mixture: seqio.Mixture, task: seqio.Task) -> float:
    """Returns the rate of a task in a mixture.

    Raises:
      UserError: if the rate depends on an unknown number of examples.
    """
    try:
        return mixture.get_rate(task)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        uncounted = [t.name for t in mixture.tasks if "train" in t.splits and not _has_count(t)]
        needs = (
            f"the number of examples of {uncounted[0]} is unknown: give the task "
            "num_input_examples, or cache the mixture and pass the cache's folder"
            if uncounted
            else "its rate depends on the number of cached examples, so cache the mixture"
        )
        raise UserError(
            f"the rate of task {task.name} in mixture {mixture.name} cannot be computed "
            f"({short_reason(error)}): {needs}:\n  {caching_command(mixture.name, 'DIR', {})}"
        ) from error


def _has_count(task: seqio.Task) -> bool:
    return count_examples(task, "train") is not None


def count_examples(task: seqio.Task, split: str, *, use_cached: bool = False) -> int | None:
    """Returns the number of examples of a split; None if it is unknown.

    Args:
      task: SeqIO's task.
      use_cached: whether the run reads the cache. If True, the result is the number of examples in
        the cache. If False, the result is the number of rows in the source before preprocessing.

    Raises:
      UserError: if the cache is read and its stats file is malformed.
    """
    cache = task.cache_dir
    if use_cached and cache:
        return _read_number(f"{cache}/stats.{split}.json", "examples")
    with contextlib.suppress(KeyError):  # `num_input_examples` may not have this split
        count = task.num_input_examples(split)
        if count is not None and math.isfinite(
            count
        ):  # TFDS reports infinity if the number is unknown
            return int(count)
    if cache and paths.exists(f"{cache}/stats.{split}.json"):
        return _read_number(f"{cache}/stats.{split}.json", "examples")
    return None


def task_spec(
    task: seqio.Task, split: str, lengths: Mapping[str, int], *, use_cached: bool, rate: float = 1.0
) -> TaskSpec:
    """Builds the specification of a mixture's task.

    Args:
      task: SeqIO's task.
      lengths: feature -> the number of tokens of a row.
      use_cached: whether to read the task's cache.
      rate: the task's mixing rate.

    Raises:
      UserError: if the lengths or the vocabulary do not fit the task's objective, or if
        `use_cached` is True and the task has no cache.
    """
    objective = objective_of(task, lengths)
    if not use_cached and objective is not None and not tokenizes_text(task):
        objective = None
    instructions = instructions_of(task, lengths) if use_cached else None
    eos = eos_of(task) if use_cached else None
    if use_cached and (objective or instructions or eos or is_all_cached(task)):
        files, examples = cache_files(task, split)
    else:
        files = ()
        examples = None if objective else count_examples(task, split, use_cached=use_cached)
    return TaskSpec(
        name=task.name,
        rate=float(rate),
        features={
            name: FeatureSpec(
                feature.add_eos, getattr(feature.vocabulary, "sentencepiece_model_file", None)
            )
            for name in lengths
            if (feature := task.output_features.get(name))
        },
        examples=examples,
        cache_files=files,
        objective=objective,
        instructions=instructions,
        eos=eos,
    )


def is_all_cached(task: seqio.Task) -> bool:
    """Returns whether a task's cache holds final examples, which need no more preprocessing."""
    if type(task).get_dataset is not seqio.Task.get_dataset:
        return False  # only SeqIO can call the method of the user's class
    return task.supports_caching and not task.preprocessors[task._cache_step_idx + 1 :]


def cache_files(task: seqio.Task, split: str) -> tuple[tuple[str, ...], int]:
    """Returns the TFRecord files of a cached split, and its number of examples.

    Raises:
      UserError: if the task is not cached, or its info or stats file is malformed.
    """
    folder = task.cache_dir
    if not folder:
        raise UserError(f"task {task.name} is not cached")
    count = _read_number(f"{folder}/info.{split}.json", "num_shards")
    examples = _read_number(f"{folder}/stats.{split}.json", "examples")
    names = (f"{folder}/{split}.tfrecord-{i:05d}-of-{count:05d}" for i in range(count))
    return tuple(names), examples


def find_rows(
    task: seqio.Task, split: str, *, use_cached: bool
) -> Callable[[], ExampleRows] | None:
    """Returns a function that finds the dataset rows of a task's examples; None if unknown.

    If the records are answer choices, `idx` counts the examples. Otherwise the examples have the
    order in which SeqIO reads them without shuffling. Without a cache, all rows are rendered.
    """
    steps = list(task.preprocessors)
    if use_cached and task.cache_dir:
        files, _ = cache_files(task, split)
        rows = cached_rows(files)
        if rows is None and is_prompted_source(task.source):
            _say_rows_are_unknown(posixpath.dirname(task.cache_dir))
        if rows and rows.source.choices:
            return lambda: rows
        keeps = all(step in _KEEPING for step in steps[task._cache_step_idx + 1 :])
        return rows_as_read(files) if keeps else None
    own_steps = [step for step in steps if not isinstance(step, seqio.CacheDatasetPlaceholder)]
    counts = own_steps[:1] == [expand_choices] or all(step in _KEEPING for step in own_steps)
    if not counts or not is_prompted_source(task.source):
        return None
    return functools.partial(rendered_rows, task.source, split)


@functools.cache  # one line for all tasks of a folder
def _say_rows_are_unknown(folder: str) -> None:
    say(
        f"{folder}: a cache does not record the rows of its dataset (it has no rows.<split>.json), "
        "so its examples are numbered without dropped rows. Cache again to number them by row"
    )


# The preprocessing steps that neither drop nor reorder examples.
_KEEPING = (
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos,
    seqio.preprocessors.append_eos_after_trim,
    seqio.trim_dataset,
)
# Number in a cache's info or stats file -> the limit that it must be below. The number of shards is
# limited because the names of cache files have five digits for the shard.
_MOST = {"num_shards": 10**5, "examples": 10**12}


def _read_number(path: str, name: str) -> int:
    try:
        number = parsed_json(paths.read_bytes(path))[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the cache's {path} cannot be read: {error!r}. To find all damage, use: "
            f"t0 verify {posixpath.dirname(path)}"
        ) from error
    if type(number) is not int or not 0 <= number < _MOST[name]:
        raise UserError(
            f"the cache's {path} has {name} {number!r:.40}; expected a number below "
            f"{_MOST[name]:,}. To find all damage, use: t0 verify {posixpath.dirname(path)}"
        )
    return number


def open_data(data: DataSpec) -> TrainingData:
    """Opens the data of a specification. SeqIO reads tasks without a cache."""

    def live(task: TaskSpec, data: DataSpec) -> ExampleSource:
        return live_source(seqio.TaskRegistry.get(task.name), task, data)

    return open_training_data(data, live)


def open_split(
    data: TrainingData | DatasetBatches, split: str, other_mixture: str | None = None
) -> TrainingData | None:
    """Opens another split of a run's mixture, unshuffled; returns None if no task has the split.

    Args:
      data: the run's data. Data from a user's own dataset function has no other splits.
      other_mixture: the task or mixture to open instead of the run's mixture.

    Raises:
      UserError: see `split_spec`.
    """
    spec: DataSpec | None = data.spec
    if not spec and (other_mixture or isinstance(data, DatasetBatches)):
        setting = "validation_mixture" if other_mixture else "validate_every_steps"
        raise UserError(
            f"train_loop.{setting} is set, but the training data comes from "
            f"{getattr(data, 'origin', 'no mixture')}, so no held-out examples are known. Train on "
            "a SeqIO mixture that is drawn by rates, or unset train_loop.validate_every_steps and "
            "train_loop.validation_mixture"
        )
    other_spec = split_spec(spec, split, other_mixture) if spec else None
    return open_data(other_spec) if other_spec else None


def split_spec(spec: DataSpec, split: str, other_mixture: str | None = None) -> DataSpec | None:
    """Returns the specification of another split, unshuffled; None if no task has the split.

    Args:
      spec: the run's data, whose lengths, packing and use of caches also apply to the split.
      other_mixture: the task or mixture to read instead of the run's mixture.

    Raises:
      UserError: if the other mixture is unknown, or has no such split, or has other features or
        another vocabulary than the run's data.
    """
    mixture = other_mixture or spec.mixture
    if other_mixture:
        known_mixture(other_mixture)
        require_split(other_mixture, split, setting="train_loop.validation_mixture")
    elif not any(split in task.splits for task in seqio.get_subtasks(known_mixture(mixture))):
        return None
    if sampling := own_sampling(known_mixture(mixture)):
        raise UserError(
            f"the held-out loss would be measured on examples that {sampling} draws, which is "
            "supported for training only; set train_loop.validation_mixture to a mixture or task "
            "that is drawn by rates"
        )
    other = data_spec(
        mixture,
        spec.lengths,
        dataset_split=split,
        shuffle=False,
        seed=spec.seed,
        use_cached=spec.use_cached,
        pack=spec.pack,
        choices=any(task.choices for task in spec.tasks),
    )
    if _vocabularies(other) != _vocabularies(spec):
        raise UserError(
            f"train_loop.validation_mixture '{mixture}' has other features or another vocabulary "
            f"than {spec.mixture}; expected a mixture with the same ones"
        )
    return other


def _vocabularies(spec: DataSpec) -> dict[str, set[str | None]]:
    """Returns feature -> the paths of the vocabularies of its tasks."""
    return {
        name: {task.features[name].vocabulary for task in spec.tasks if name in task.features}
        for name in spec.lengths
    }


@gin.configurable("train_dataset_fn", module="t0", denylist=["sequence_length"])
def own_train_dataset_fn(mixture_or_task_name: str, sequence_length: Any, **arguments: Any) -> Any:
    """Reads data with T5's `mesh_train_dataset_fn`, under another gin name."""
    from t0.compat import t5_mesh

    return t5_mesh.mesh_train_dataset_fn(
        mixture_or_task_name=mixture_or_task_name, sequence_length=sequence_length, **arguments
    )


def open_dataset_function(
    train_dataset_fn: Callable[..., Any], default_seed: int, **arguments: Any
) -> TrainingData | DatasetBatches:
    """Opens the data that a run's dataset function describes or returns.

    If gin binds T5's function or `t0.train_dataset_fn`, this package reads the data itself, and
    only asks gin for the function's arguments. T5's function is called if the mixture has its own
    `sample_fn`. A user's own function is also called. It returns a `tf.data.Dataset`, or a
    `TrainingData`, which is returned unchanged.

    Args:
      train_dataset_fn: the dataset function that gin binds.
      default_seed: the data's seed if gin does not bind a seed.
      **arguments: the arguments with which Mesh TensorFlow calls the function. The default
        vocabulary is None, and the default split is "train".

    Raises:
      UserError: if the mixture is unknown, if a cache cannot be read, or if the run compares answer
        choices and the mixture has its own `sample_fn`.
    """
    from t0.compat import t5_mesh

    arguments = {"vocabulary": None, "dataset_split": "train", **arguments}
    if train_dataset_fn is own_train_dataset_fn:
        arguments = read_arguments(own_train_dataset_fn, **arguments)
        arguments |= arguments.pop("arguments")
        train_dataset_fn = t5_mesh.mesh_train_dataset_fn
    if train_dataset_fn is t5_mesh.mesh_train_dataset_fn:
        arguments = read_arguments(train_dataset_fn, **arguments)
        choices = bool(ChoiceLosses())
        if sampling := own_sampling(known_mixture(arguments["mixture_or_task_name"])):
            return _open_sampled(sampling, arguments, default_seed, choices=choices)
        del arguments["vocabulary"]
        return open_data(data_spec(**arguments, default_seed=default_seed, choices=choices))

    def make() -> Any:
        with checked_tsv_files():
            return train_dataset_fn(**arguments)

    with tf.Graph().as_default():
        result = make()
    return result if isinstance(result, TrainingData) else DatasetBatches(make)


def _open_sampled(
    sampling: str, arguments: Mapping[str, Any], default_seed: int, *, choices: bool
) -> DatasetBatches:
    """Opens a mixture that draws its examples itself, through SeqIO."""
    from t0.compat import t5_mesh

    if choices:
        raise UserError(
            f"choice_losses needs a mixture that is drawn by rates, and {sampling} draws the "
            "examples. Register the mixture without sample_fn, or unset choice_losses"
        )
    mixture, split = known_mixture(arguments["mixture_or_task_name"]), arguments["dataset_split"]
    for task in mixture.tasks:
        if split in task.splits:
            rate_of(mixture, task)
    seed = default_seed if arguments["seed"] is None else arguments["seed"]
    make = functools.partial(t5_mesh.mesh_train_dataset_fn, **{**arguments, "seed": seed})
    return DatasetBatches(make, sampling)


def require_cached(name: str, *, function: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Checks that every task of the mixture `name` has a cache in one of the cache folders.

    Args:
      name: a mixture's or task's name.
      function: gin's name of the dataset function that reads the mixture, such as
        "mesh_train_dataset_fn".
      settings: flag -> values, for the flags of this command that the caching command also needs.

    Raises:
      UserError: if a task is not cached. The message has the command that caches the mixture.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    missing = [task.name for task in tasks if not task.cache_dir]
    if not missing:
        return
    folders = list(dict.fromkeys(seqio.get_global_cache_dirs()))
    into = folders[-1] if folders else "DIR"
    hint = "" if folders else f" and pass --additional_task_cache_dirs={into},"
    raise UserError(
        f"{len(missing)} of the {len(tasks)} tasks of {name} are not cached, such as "
        f"'{missing[0]}' (looked in: {', '.join(folders) or 'no folder was given'}). "
        f"Cache them with:\n  {caching_command(name, into, settings)}\n{hint} or read them live "
        f"with --gin_param='{function}.use_cached = False'"
    )


def unread_caches(name: str, *, function: str) -> str | None:
    """Returns a line about existing caches of the mixture `name` that the run does not read.

    Args:
      name: a mixture's or task's name.
      function: gin's name of the dataset function, whose `use_cached` is False.

    Returns:
      the line; None if a task is not cached.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    # `all` stops at the first task without a cache. This saves requests, because each lookup in a
    # bucket is a request.
    if not tasks or not all(task.supports_caching and task.cache_dir for task in tasks):
        return None
    return (
        f"{name} is cached in {posixpath.dirname(tasks[0].cache_dir)}, and the cache is not read. "
        f"To read it: --gin_param='{function}.use_cached = True'"
    )


def require_whole(name: str, split: str, *, contents: bool = False) -> None:
    """Checks the cache files of a split for all tasks of the mixture `name`.

    Args:
      name: a mixture's or task's name.
      contents: whether to read all files and compare their checksums. If False, only the names and
        sizes of local files are checked.

    Raises:
      UserError: if a file is damaged. The message has the task, the file, and a command to run.
    """
    for task in seqio.get_subtasks(known_mixture(name)):
        folder = task.cache_dir
        if not folder or (paths.is_remote(folder) and not contents):
            continue
        fault = next(verify_cache(folder, split=split, contents=contents), None)
        if fault:
            raise UserError(
                f"the cache of task {task.name}: {fault}. Copy or cache it again. To find "
                f"all damage, use: t0 verify {folder}"
            )


def require_current(
    names: Sequence[str], *, settings: Mapping[str, Sequence[str]], allow_stale: bool = False
) -> list[str]:
    """Checks that caches are not older than the prompts, data and vocabulary of their tasks.

    Args:
      names: the names of mixtures or tasks.
      settings: flag -> values, for the flags of this command that the caching command also needs.
      allow_stale: whether a stale cache leads to a note instead of an error.

    Returns:
      notes about stale caches, and about caches that do not record how they were made.

    Raises:
      UserError: if a cache is stale. The message has the command that refreshes it.
    """
    members = {name: seqio.get_subtasks(known_mixture(name)) for name in names}
    tasks = {task.name: task for of_name in members.values() for task in of_name}
    cached = {task: folder for task in tasks.values() if (folder := task.cache_dir)}
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        compared = [*pool.map(changes_of, cached, cached.values())]
    changes = dict(zip(cached, compared, strict=True))
    notes = []
    if unknown := [task.name for task, changed in changes.items() if changed is None]:
        notes.append(
            f"{len(unknown)} of {len(cached)} caches, such as that of {unknown[0]}, are not "
            f"compared with prompts, data and vocabulary: {NO_RECORD}"
        )
    stale = {task.name: changed for task, changed in changes.items() if changed}
    if not stale:
        return notes
    first, folder = next((task.name, cached[task]) for task in cached if task.name in stale)
    into = folder.removesuffix("/" + "/".join(first.split(":")))
    renewed = [name for name, of_name in members.items() if any(t.name in stale for t in of_name)]
    message = (
        f"{len(stale)} of {len(cached)} caches are stale, such as that of {first} ({folder}): "
        f"changed since it was written: {'; '.join(stale[first])}. Refresh with: "
        f"{caching_command(','.join(renewed), into, settings)}"
    )
    if not allow_stale:
        raise UserError(f"{message} (or use them unchanged: --allow_stale_cache)")
    return [*notes, message]


def caching_command(name: str, into: str, settings: Mapping[str, Sequence[str]]) -> str:
    """Returns the command that caches the mixture `name` into a folder; see `require_cached`."""
    flags = [f"--tasks={name}", f"--output_cache_dir={into}"]
    flags += [f"--{flag}={value}" for flag, values in settings.items() for value in values]
    flags += [f"--gin_param={name}={value!r}" for name, value in _bound_of_instructions().items()]
    return shlex.join(["seqio_cache_tasks", *flags])


def _bound_of_instructions() -> dict[str, Any]:
    """Returns the gin bindings that select which instances a cache of instructions contains."""
    names = [f"sni.{field.name}" for field in dataclasses.fields(InstructionSettings)]
    unset = object()
    return {name: value for name in names if (value := bound(name, unset)) is not unset}


def require_split(name: str, split: str, *, setting: str = "run.dataset_split") -> None:
    """Checks that at least one task of the mixture `name` has the split.

    Args:
      name: a mixture's or task's name.
      setting: gin's name of the setting that selects the split, for the message.

    Raises:
      UserError: if no task has the split. The message has the existing splits.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    splits = sorted({present for task in tasks for present in task.splits})
    if split not in splits:
        raise UserError(
            f"no task of {name} has a split '{split}'; there are: {', '.join(splits)} ({setting})"
        )


def notes(name: str, split: str) -> Iterator[str]:
    """Yields notes about the recipe tasks in the mixture `name`: rows left out, UL2's mode tokens.

    Args:
      name: a mixture's or task's name.

    Raises:
      UserError: if the data is malformed.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    for task in tasks:
        if isinstance(task.source, RecordSource) and split in task.splits:
            yield from task.source.notes(split)
    yield from filter(None, dict.fromkeys(map(describe_mode, tasks)))
