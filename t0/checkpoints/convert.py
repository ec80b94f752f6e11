"""Converts a checkpoint from any of the three formats to any other, tensor by tensor.

    report = convert("/models/t0_3b", "/models/t0_3b_mtf", to="mtf")
    report.rows[0].name, report.rows[0].checksum

Values are never changed unless a dtype is asked for. The destination appears when it is complete:
until then it is a hidden folder beside it, which is removed when anything goes wrong. Memory: the
largest tensor, and at most 256 MB read ahead.
"""

import collections
import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from t0.checkpoints import names, tokenizer
from t0.checkpoints.formats import FORMATS, open_source
from t0.checkpoints.shape import listed
from t0.checkpoints.source import ACTIVATIONS, DTYPES, Entry, Facts, Plan, Source, Target, checksum
from t0.errors import UserError, unknown_name

_AHEAD_BYTES = 256 << 20
_SPARE_BYTES = 64 << 20  # indexes, configs, and what else fills a disk meanwhile


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may ask for.

    Attributes:
      step: which checkpoint of the source, and the step to note where the source has none.
      dtype: "float32" or "bfloat16" for the parameters; None keeps each as it is.
      tokenizer: the SentencePiece model to put beside the tensors.
      usual_tokenizer: another, for a source without one, if it has the model's number of ids.
      vocabulary_rows: embeddings that the target gets; new ones are copies of the padding token's.
      activation: of the feed-forward layer, where the source does not say.
      drop_slots: leave the optimizer's state out.
      scan_layers: T5X only: stack the layers.
      gzip_level: T5X only: 0 stores, 1 is T5X's own.
      shard_bytes: Hugging Face only: the largest file.
    """

    step: int | None = None
    dtype: str | None = None
    tokenizer: Path | None = None
    usual_tokenizer: Path | None = None
    vocabulary_rows: int | None = None
    activation: str | None = None
    drop_slots: bool = False
    scan_layers: bool = False
    gzip_level: int = 0
    shard_bytes: int = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor of the summary.

    Attributes:
      name: canonical.
      source: its name in the source.
      shape, dtype: as written.
      checksum: of its bytes in canonical orientation, the same in every format; or "".
    """

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    checksum: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
      kinds: of source and target.
      path: the destination.
      rows: of the tensors written, each exactly once.
      left_out: (name in the source, reason).
      notes: sentences that the user must read, such as an assumption made.
      nbytes, seconds: of the tensors, and of moving them.
    """

    kinds: tuple[str, str]
    path: Path
    rows: list[Row]
    left_out: list[tuple[str, str]]
    notes: list[str]
    nbytes: int
    seconds: float


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str,
    options: Options | None = None,
    checksums: bool = False,
    progress: bool = True,
) -> Report:
    """Converts a checkpoint.

    Args:
      source: see `formats.open_source`.
      destination: a folder that does not exist yet, or is empty.
      to: "mtf", "hf" or "t5x".
      options: what the user asks for.
      checksums: whether the rows get checksums.
      progress: whether to show bytes, rate and time left on stderr.

    Raises:
      UserError: for whatever is wrong with the source, the options, the destination or the disk;
        nothing is left behind then.
    """
    options = options or Options()
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS, f"The formats are {', '.join(FORMATS)}.")
    destination = Path(destination)
    opened = open_source(source, step=options.step, keep_slots=not options.drop_slots)
    with contextlib.closing(opened):
        plan, notes = make_plan(opened, to, options)
        check_destination(destination, sum(entry.nbytes for entry in plan.entries.values()))
        began = time.monotonic()
        with _staged(destination) as folder:
            target = FORMATS[to].target(folder, plan)
            with contextlib.closing(target):
                rows = _move(opened, target, plan, checksums=checksums, progress=progress)
                target.finish()
        seconds = time.monotonic() - began
    dropped = [
        (e.native, f"{to} holds none") for n, e in opened.entries.items() if n not in plan.entries
    ]
    return Report(
        kinds=(opened.kind, to),
        path=destination,
        rows=rows,
        left_out=[*opened.unused, *dropped],
        notes=notes,
        nbytes=sum(entry.nbytes for entry in plan.entries.values()),
        seconds=seconds,
    )


def make_plan(source: Source, to: str, options: Options) -> tuple[Plan, list[str]]:
    """Returns what the target will hold, and what the user must be told about it.

    Raises:
      UserError: if source and options do not go together.
    """
    notes: list[str] = []
    dtype = _asked_dtype(source, options)
    model = source.model
    if options.vocabulary_rows and options.vocabulary_rows != model.vocabulary:
        if len(source.parameters) != len(source.entries):
            raise UserError("--vocabulary_rows changes shapes; say --drop_slots with it")
        notes.append(
            f"the vocabulary goes from {model.vocabulary:,} rows to {options.vocabulary_rows:,}"
        )
        model = dataclasses.replace(model, vocabulary=options.vocabulary_rows)
    entries = {
        name: Entry(_shape(name, entry, model), _dtype(name, entry, dtype), entry.native)
        for name, entry in source.entries.items()
    }
    facts = _facts(source, to, options, notes)
    settings = {
        "source": f"{FORMATS[source.kind].title}: {_printable(Path(source.path).name)}",
        "scan_layers": options.scan_layers,
        "gzip_level": options.gzip_level,
        "shard_bytes": options.shard_bytes,
    }
    plan = FORMATS[to].adapted(Plan(model, entries, facts, settings))
    lost = len(entries) - len(plan.entries)
    if lost:
        notes.append(f"{lost:,} optimizer slots are left out: {FORMATS[to].title} holds none")
    if to == "t5x" and len(entries) == len(source.parameters):
        notes.append(
            "without an optimizer's state T5X takes this for inference, or for training with "
            "RestoreCheckpointConfig.fallback_to_scratch = True"
        )
    return plan, notes


def _facts(source: Source, to: str, options: Options, notes: list[str]) -> Facts:
    facts = source.facts
    activation = options.activation or facts.activation
    if activation is None:
        activation = "gelu" if source.model.gated else "relu"
        kind = "T5 1.1, T0, mT5" if source.model.gated else "T5 1.0"
        if to != "t5x":  # which does not write it either
            notes.append(
                f"the source does not name its feed-forward activation: {activation} is taken, as "
                f"{kind} have it (--activation says otherwise)"
            )
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    if options.activation and facts.activation and options.activation != facts.activation:
        raise UserError(
            f"--activation {options.activation}, but {source.path} says {facts.activation}"
        )
    step = options.step if options.step is not None else facts.step
    if step != facts.step and facts.step is not None:
        notes.append(f"step {step:,} is written; the source says {facts.step:,}")
    if step is None:
        step = 0
        notes.append("the source does not say its step: 0 is written (--step says otherwise)")
    pieces = _pieces(facts, options, options.vocabulary_rows or source.model.vocabulary, notes)
    return dataclasses.replace(facts, step=step, activation=activation, tokenizer=pieces)


def _pieces(facts: Facts, options: Options, rows: int, notes: list[str]) -> Path | None:
    """Returns the SentencePiece model that goes with the tensors."""
    pieces = options.tokenizer or facts.tokenizer
    if pieces:
        tokenizer.check(pieces, rows)
        return pieces
    usual = options.usual_tokenizer
    if usual and not tokenizer.fits(usual, rows):
        notes.append(
            f"{usual} has {tokenizer.ids(usual):,} ids and the model {rows:,} embeddings: it is "
            "another's tokenizer, and none is written (--vocab names one)"
        )
        return None
    return usual


def _printable(name: str) -> str:
    # It goes into a comment of a gin file, which a line break would end.
    return name if name.isprintable() else ascii(name)


def _asked_dtype(source: Source, options: Options) -> np.dtype | None:
    if options.dtype is not None:
        if options.dtype not in DTYPES:
            raise unknown_name("dtype", options.dtype, DTYPES, f"It is one of {', '.join(DTYPES)}.")
        return DTYPES[options.dtype]
    odd = [
        f"{entry.native} {entry.dtype}"
        for entry in source.entries.values()
        if entry.dtype not in DTYPES.values()
    ]
    if odd:
        raise UserError(
            f"{source.path} has {len(odd):,} tensors that are neither float32 nor bfloat16; say "
            f"--dtype float32, which holds them exactly (float64 excepted):{listed(odd)}"
        )
    return None


def _dtype(name: str, entry: Entry, asked: np.dtype | None) -> np.dtype:
    # Mesh TensorFlow keeps slots in float32 whatever the parameters are.
    return entry.dtype if asked is None or names.split_slot(name)[1] else asked


def _shape(name: str, entry: Entry, model: object) -> tuple[int, ...]:
    if names.split_slot(name)[1]:
        return entry.shape
    return tuple(model.sizes[letter] for letter in names.row_of(name).dims)


def _fitted(name: str, array: np.ndarray, entry: Entry) -> np.ndarray:
    """Returns the array in the planned dtype, with the planned number of vocabulary rows."""
    array = array.astype(entry.dtype, copy=False)
    if array.shape == entry.shape:
        return array
    axis = names.row_of(name).dims.index("V")
    rows = np.arange(entry.shape[axis])
    # The padding token is never a target, so a trained model gives copies of it no probability.
    return np.take(array, np.where(rows < array.shape[axis], rows, 0), axis=axis)


def _move(
    source: Source, target: Target, plan: Plan, *, checksums: bool, progress: bool
) -> list[Row]:
    rows = []
    total = sum(entry.nbytes for entry in plan.entries.values())
    with tqdm(total=total, unit="B", unit_scale=True, disable=not progress, leave=False) as bar:
        for name, loaded in _read_ahead(source, plan.entries):
            entry = plan.entries[name]
            array = _fitted(name, loaded, entry)
            del loaded
            target.write(name, array)
            digest = checksum(array) if checksums else ""
            rows.append(Row(name, entry.native, entry.shape, entry.dtype.name, digest))
            bar.update(entry.nbytes)
            del array
    return rows


def _read_ahead(source: Source, entries: Mapping[str, Entry]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors in order, the next ones loaded meanwhile while they are small enough."""
    waiting: collections.deque[tuple[str, Future]] = collections.deque()
    todo = collections.deque(entries)
    held = 0
    with ThreadPoolExecutor(source.readers, thread_name_prefix="reader") as pool:
        try:
            while todo or waiting:
                while todo and (not held or held + entries[todo[0]].nbytes <= _AHEAD_BYTES):
                    name = todo.popleft()
                    held += entries[name].nbytes
                    waiting.append((name, pool.submit(source.load, name)))
                name, future = waiting.popleft()
                array = future.result()
                del future
                yield name, array
                del array
                held -= entries[name].nbytes
        finally:
            pool.shutdown(cancel_futures=True)


def check_destination(destination: Path, nbytes: int) -> None:
    """Checks that a checkpoint can be written.

    Args:
      destination: a folder that does not exist yet, or is empty.
      nbytes: of the tensors that will go there.

    Raises:
      UserError: if something is there already, or the disk has no room.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UserError(f"{destination} exists and is not empty; name a new folder")
    folder = next(p for p in (destination, *destination.absolute().parents) if p.is_dir())
    needed, free = nbytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the checkpoint needs {needed / 1e9:,.2f} GB, the disk of {folder} has "
            f"{free / 1e9:,.2f} GB free: name another destination, or make room"
        )
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written: permission denied")


@contextlib.contextmanager
def _staged(destination: Path) -> Iterator[Path]:
    """Gives a hidden folder that becomes the destination when the block ends well."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{destination.name}.incomplete-"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=destination.parent))
    except OSError as error:
        raise UserError(f"{destination.parent} cannot be written: {error.strerror}") from error
    try:
        yield folder
        folder.chmod(0o777 & ~_umask())
        os.replace(folder, destination)  # noqa: PTH105 (rename onto an empty folder)
    except OSError as error:
        raise UserError(f"{destination} cannot be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
