"""Reads data without a cache: examples from SeqIO, raw texts, or a user's `tf.data.Dataset`.

    source = live_source(task, spec, data)   # SeqIO's task, its TaskSpec and the run's DataSpec
    for block in source.blocks(epoch=0, first=0, seed=7): ...

The text of a pretraining task comes from a `TextSource`. It may also come from any SeqIO source
that has shards, and whose records have the field `text`, such as C4 in TensorFlow Datasets.

    data = DatasetBatches(make)              # make: the user's function that builds the dataset
    batch, position = next(data.batches(16))
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t0 import compat
from t0.compat import seqio, t5_preprocessors
from t0.compat import tf1 as tf
from t0.config.plain_data import Count, read_plain
from t0.config.specification import DataSpec, TaskSpec
from t0.errors import UserError, original, reading, remote_mistake, say
from t0.feeding.pretraining import Documents, PretrainingSource
from t0.feeding.reading import BLOCK_EXAMPLES, ExampleBlock, ExampleSource, shuffled
from t0.feeding.token_files import Ragged
from t0.files.any_path import any_path, unpacked
from t0.sources.csv_reader import MARKS, not_utf8
from t0.sources.json_lines import LARGEST_LINE, too_long
from t0.tasks.denoisers import UL2, denoiser_of
from t0.tasks.recipe_tasks import TextSource

_MARK = "\ufeff"


def live_source(task: seqio.Task, spec: TaskSpec, data: DataSpec) -> ExampleSource:
    """Returns a source that makes a task's examples while they are read.

    Args:
      task: SeqIO's task.
      spec: the task's specification, without cache files.
      data: the specification of the run's data.
    """
    if spec.objective is None:
        return LiveSource(task, data, spec.examples)
    shards, read = _open_texts(task.source, data.split)
    encode = task.output_features["targets"].vocabulary.encode
    documents = Documents(task.name, shards, read, encode)
    if denoiser_of(task):  # a run reads seven of these tasks, which take the memory of one
        block = documents.block_characters // len(UL2)
        documents = dataclasses.replace(documents, block_characters=block)
    return PretrainingSource(task.name, documents, spec.objective, data.lengths)


@dataclasses.dataclass(frozen=True)
class LiveSource:
    """Reads examples through SeqIO, which can read an epoch only from its start.

    Attributes:
      task: SeqIO's task.
      data: the specification of the run's data. If it says that caches are used, SeqIO runs only
        the preprocessing steps that follow the cache.
      examples: the number of the split's examples; None if it is unknown.
    """

    task: seqio.Task
    data: DataSpec
    examples: int | None
    cache: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields blocks from number `first` on, each shuffled unless `seed` is None."""

        names = [*self.data.lengths]

        def make() -> tf.data.Dataset:
            dataset = self.task.get_dataset(
                self.data.lengths,
                split=self.data.split,
                use_cached=self.data.use_cached,
                shuffle=False,
                seed=(seed or 0) + epoch,
                num_epochs=1,
            )
            _check_integers(self.name, dataset, names)
            return dataset.map(lambda ex: {k: tf.cast(ex[k], tf.int32) for k in names})

        stream = elements(make)
        for number in itertools.count():
            examples = [*itertools.islice(stream, BLOCK_EXAMPLES)]
            if not examples:
                return
            if number < first:
                continue
            ids = {}
            for name in names:
                sequences = [example[name] for example in examples]
                ids[name] = Ragged(np.concatenate(sequences), np.cumsum([0, *map(len, sequences)]))
            yield ExampleBlock(ids, shuffled(self.name, epoch, number, seed, len(examples)))


def elements(make: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yields a dataset's elements, without changing the default graph or session.

    Args:
      make: a function that builds the dataset in the default graph.

    Raises:
      UserError: if records cannot be read, or if one of this project's generators raises a
        UserError.
    """
    # No graph or session may be active at a `yield`, because the generator may be closed in another
    # context.
    try:
        with tf.Graph().as_default() as graph:
            iterator = tf.data.make_initializable_iterator(make())
            next_element = iterator.get_next()
            ready = [iterator.initializer, tf.tables_initializer()]
        with contextlib.closing(tf.Session(graph=graph)) as session:
            session.run(ready)
            while True:
                try:
                    element = session.run(next_element)
                except tf.errors.OutOfRangeError:
                    return
                yield element
    except tf.errors.OpError as error:
        cause = original(error)
        if isinstance(cause, UserError):
            raise cause from error
        reason = remote_mistake(error) or f"records cannot be read: {error.message}"
        raise UserError(reason) from error


def tokenizes_text(task: seqio.Task) -> bool:
    """Returns whether a task's steps before the cache only tokenize the column `text`."""
    steps = task.preprocessors[: task._cache_step_idx]
    if len(steps) != 2 or steps[1] is not seqio.preprocessors.tokenize:
        return False
    rekey = steps[0]
    return (
        isinstance(rekey, functools.partial)
        and rekey.func is t5_preprocessors.rekey
        and rekey.keywords == {"key_map": {"inputs": None, "targets": "text"}}
    )


# The methods of SeqIO's mixtures that this package replaces if no class overrides them.
_REPLACED = ("get_dataset", "get_task_dataset", "_get_all_mixing_rates")


def own_sampling(mixture: seqio.Mixture | seqio.Task) -> str | None:
    """Returns what draws a mixture's examples; None if SeqIO draws them by their rates.

    Only SeqIO can call a mixture's own function, so the mixture is read with `DatasetBatches`.

    >>> own_sampling(seqio.MixtureRegistry.get("in_turn"))
    "the sample_fn of mixture in_turn"
    """
    if not isinstance(mixture, seqio.Mixture):
        return None
    for name in _REPLACED:
        if getattr(type(mixture), name) is not getattr(seqio.Mixture, name):
            return f"{type(mixture).__name__}.{name} of mixture {mixture.name}"
    function = mixture._sample_fn
    options: Mapping[str, Any] = {}
    if isinstance(function, functools.partial) and not function.args:
        function, options = function.func, function.keywords
    # Training repeats each task for ever, so how a dataset ends has no effect.
    if (
        getattr(function, "__module__", "").startswith("tensorflow.")
        and getattr(function, "__name__", "").startswith("sample_from_datasets")
        and options.keys() <= {"stop_on_empty_dataset", "rerandomize_each_iteration"}
    ):
        return None
    return f"the sample_fn of mixture {mixture.name}"


def _open_texts(
    source: seqio.DataSource, split: str
) -> tuple[Sequence[Any], Callable[[Any], Iterable[str | bytes]]]:
    """Returns (the shards of a split, a function that yields the texts of a shard)."""
    if isinstance(source, TextSource):
        return source.texts.shards(split), source.texts.documents
    count = len(source.list_shards(split))

    def read(index: int) -> Iterator[bytes]:
        def make() -> tf.data.Dataset:
            shard = seqio.ShardInfo(index=index, num_shards=count)
            dataset = source.get_dataset(split, shuffle=False, seed=0, shard_info=shard)
            return dataset.map(lambda row: row["text"]).batch(64).prefetch(2)

        for texts in elements(make):
            yield from texts.tolist()

    return range(count), read


class DatasetBatches:
    """The batches of a user's own function, with the methods of `TrainingData`.

    To continue from a position, it reads the dataset again from the start.

    Args:
      make: a function that builds the dataset in the default graph.
      origin: the function that makes or draws the examples, for messages.
    """

    filling = None
    spec = None

    def __init__(self, make: Any, origin: str = "your own function (run.train_dataset_fn)") -> None:
        from t0.compat import mesh_utils

        self._make, self.origin = make, origin
        with tf.Graph().as_default():
            spec = tf.data.get_output_types(make())
        # Mesh TensorFlow also drops all features that no model reads.
        self.features = tuple(
            name
            for name, kind in spec.items()
            if kind.is_integer and name in mesh_utils._MODEL_FEATURES
        )

    def shares(self) -> list[Any]:
        """Returns an empty list, because the tasks in a user's own dataset are unknown."""
        return []

    def read_position(self, position: Any) -> Mapping[str, int] | None:
        """Checks a position from a checkpoint, and returns it for use with `batches`.

        Args:
          position: the position; None means the start of the data, and is returned as None.

        Raises:
          ValueError: if `position` was not returned by `batches`.
        """
        if position is not None and "batches" not in position:
            raise ValueError(
                f"the position in the data is {position!r:.80}; expected the field 'batches'"
            )
        return read_plain(position, Mapping[str, Count] | None, "the position in the data")

    def batches(
        self, rows: int, position: Mapping[str, int] | None = None
    ) -> Iterator[tuple[dict[str, np.ndarray], dict[str, int]]]:
        """Yields (batch, position). The position holds the number of batches yielded so far."""
        before = position["batches"] if position else 0

        def make() -> tf.data.Dataset:
            dataset = self._make().repeat().map(lambda ex: {k: ex[k] for k in self.features})
            return dataset.batch(rows, drop_remainder=True).skip(before).prefetch(2)

        for done, batch in enumerate(elements(make), start=before + 1):
            yield {n: x.astype(np.int32) for n, x in batch.items()}, {"batches": done}


def _check_integers(source: str, dataset: tf.data.Dataset, names: Iterable[str]) -> None:
    """Raises a UserError if a feature has floating-point numbers, which would be rounded to ids."""
    for name in names:
        dtype = dataset.element_spec[name].dtype
        if dtype.is_floating:
            raise UserError(
                f"feature {name} of {source} is {dtype.name}; expected token ids (int32). "
                "Leave it out of the output features, or convert it in a preprocessor"
            )


@functools.lru_cache(maxsize=1024)  # a run opens its data several times
def check_tsv_file(path: str) -> bool:
    """Checks a TSV file, prints its number of examples, and returns whether it has a BOM.

    Each file is only read once.

    Args:
      path: the file. If its name ends in .gz, it is unpacked.

    Raises:
      UserError: if a line has no text, does not have exactly one tab, or is not UTF-8. The message
        has the number of the line.
    """
    count, has_mark = 0, False
    with reading(path), unpacked(any_path(path)) as file:
        for count in itertools.count():
            line = file.readline(LARGEST_LINE + 1)
            if not line:
                break
            if len(line) > LARGEST_LINE:
                raise too_long(any_path(path), count + 1)
            has_mark |= _check_line(path, count + 1, line)
    if not count:
        raise UserError(f"{path} is empty: expected lines with an input, a tab and a target")
    say(f"tsv_dataset_fn reads {path}: {count:,} examples")
    return has_mark


def _check_line(path: str, number: int, line: bytes) -> bool:
    """Checks a line, and returns whether it begins with a byte order mark."""
    where, name = f"{path}, line {number}", os.path.basename(path)  # noqa: PTH119 (or a URL)
    mark = next((mark for mark in MARKS if number == 1 and line.startswith(mark)), None)
    if mark and not MARKS[mark].startswith("utf-8"):
        raise UserError(f"{where}: {not_utf8(name, '', line[0], MARKS[mark].upper())}")
    try:
        text = line.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        before = line[: error.start].decode("utf-8")
        raise UserError(f"{where}: {not_utf8(name, before, line[error.start])}") from None
    tabs = text.count("\t")
    if tabs != 1:
        fault = f"has {tabs + 1} columns" if tabs else "has no tab" if text else "is empty"
        shown = f", {text[:60]!r}" if text else ""
        raise UserError(
            f"{where}: {fault}{shown}. Each line needs an input, one tab and a target. "
            "Remove the line, or replace a tab or line break inside a text by a space."
        )
    return text.startswith(_MARK)


def _checked_lines(filename: Any, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    """Replaces `tf.data.TextLineDataset`: checks files, unpacks `.gz`, drops byte order marks."""
    names = [filename] if isinstance(filename, str | os.PathLike) else filename
    if args or kwargs or not isinstance(names, list | tuple):
        return tf.data.TextLineDataset(filename, *args, **kwargs)
    has_mark = {os.fspath(name): check_tsv_file(os.fspath(name)) for name in names}
    if not any(name.endswith(".gz") or marked for name, marked in has_mark.items()):
        return tf.data.TextLineDataset(filename)
    datasets = []
    for name in map(os.fspath, names):
        packed = "GZIP" if name.endswith(".gz") else None
        lines = tf.data.TextLineDataset(name, compression_type=packed)
        if has_mark[name]:
            lines = lines.map(lambda line: tf.strings.regex_replace(line, f"^{_MARK}", ""))
        datasets.append(lines)
    return functools.reduce(lambda first, second: first.concatenate(second), datasets)


class _Overlay:
    """Wraps a module, and replaces the values of some of its names."""

    def __init__(self, module: Any, **other: Any) -> None:
        self.__dict__.update(other, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def checked_tsv_files() -> Iterator[None]:
    """Makes T5's `tsv_dataset_fn` check its files while the context is open."""
    data = _Overlay(tf.data, TextLineDataset=_checked_lines)
    with compat.replaced("t5_mesh.tf", _Overlay(tf, data=data)):
        yield
