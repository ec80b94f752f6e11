"""Opens a checkpoint in any supported format, and converts it to another.

    source = open_source("/models/t0_3b")                  # detects a Hugging Face folder
    report = convert("/models/t0_3b", "/models/t0_3b_mtf", to="mtf")
    report.rows[0].name, report.rows[0].checksum
    as_mesh_checkpoint("/models/t0_3b", "/models/run/converted")
    # "/models/run/converted/t0_3b-5f3c.../model.ckpt-0"

`FORMATS` has the class that writes each format. A conversion changes values only if `dtype` is set.
It holds one tensor in memory at a time. It writes its files into a hidden folder next to the
destination. When the files are complete, this folder is renamed to the destination. If the
conversion fails, the folder is removed. If the destination is in a bucket, the files are written
locally and then uploaded.

`as_mesh_checkpoint` returns a checkpoint in Mesh TensorFlow's format, which training and scoring
read. A source that already has this format is used directly. Any other source is converted, without
rounding any value: mixed dtypes become float32, the vocabulary is padded to the size that Mesh
TensorFlow needs, and an unknown step becomes 0.
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from t0.checkpoints import (
    adapter_folders,
    checkpoint_files,
    hugging_face,
    mtf,
    names,
    other_folders,
    t5x,
    tokenizer,
    torch_shards,
)
from t0.checkpoints.formats import (
    ACTIVATIONS,
    BFLOAT16,
    DTYPES,
    FLOAT32,
    CheckpointFacts,
    CheckpointSource,
    CheckpointTarget,
    ConversionOptions,
    TargetPlan,
    TensorEntry,
    checksum,
)
from t0.checkpoints.shape import listed
from t0.checkpoints.weight_files import INDEX, SINGLE
from t0.config.model_spec import ModelShape
from t0.errors import UserError, unknown_name
from t0.files import paths, publishing
from t0.files.any_path import any_path

_UNFINISHED = ".unfinished"
_SPARE_BYTES = 64 << 20  # for indexes, configs, and other processes' files
# The files that a conversion reads. `fingerprint` ignores all other files, because they may change
# without a change of the weights, especially in a model directory.
_READ = {
    "hf": ("config.json", tokenizer.JSON_FILE, "*.safetensors*", "*.bin*"),
    "t5x": ("**/*",),
    "torch": (torch_shards.RECORD, "*.safetensors"),
    "adapter": (adapter_folders.CONFIG, adapter_folders.WEIGHTS),
}


@dataclasses.dataclass(frozen=True)
class ConvertedTensor:
    """A converted tensor, as the summary of a conversion shows it.

    Attributes:
      name: the tensor's canonical name.
      source: its name in the source.
      shape: its shape in the target.
      dtype: its dtype in the target.
      checksum: the checksum of its bytes in canonical orientation, which is the same in every
        format.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    checksum: str


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """The result of a conversion.

    Attributes:
      kinds: the formats of source and target.
      rows: one row for each tensor that was written.
      left_out: (name in the source, reason) of each tensor that was not written.
      notes: sentences that the user must read, for example about an assumption.
      nbytes: the size of the tensors in bytes.
    """

    kinds: tuple[str, str]
    rows: list[ConvertedTensor]
    left_out: list[tuple[str, str]]
    notes: list[str]
    nbytes: int


FORMATS = {"mtf": mtf.MtfTarget, "hf": hugging_face.HfTarget, "t5x": t5x.T5xTarget}
_SOURCES = {
    "mtf": mtf.MtfSource,
    "hf": hugging_face.HfSource,
    "t5x": t5x.T5xSource,
    "torch": torch_shards.TorchSource,
}
# Format of a source -> its name in messages. The PyTorch engine's checkpoints can only be read.
_TITLES = {kind: target.title for kind, target in FORMATS.items()} | {
    "torch": "PyTorch engine",
    "adapter": "adapter",
}


def open_source(
    path: str | Path,
    *,
    step: int | None = None,
    keep_slots: bool = True,
    base: str | Path | None = None,
) -> CheckpointSource:
    """Opens a checkpoint, and detects its format. An adapter is merged into its base.

    Args:
      path: a Mesh TensorFlow model directory or checkpoint prefix; a Hugging Face folder or one of
        its weight files; a T5X folder with `checkpoint_STEP` folders, or one of these folders; a
        model directory of the PyTorch engine, or one of its `torch.ckpt-STEP` folders. If a
        directory has checkpoints of Mesh TensorFlow and of the PyTorch engine, the newest is
        opened.
      step: the step of the checkpoint in a folder; by default the latest, which the file
        `checkpoint` names.
      keep_slots: whether to read the optimizer's state.
      base: if the checkpoint is an adapter, the model to merge it into; by default the model that
        the adapter names.

    Raises:
      UserError: if there is no checkpoint, or it is damaged, incomplete or not a T5.
    """
    kind, location = recognise(path, step=step)
    if kind == "adapter":
        return _open_adapter(any_path(location), base)
    return _SOURCES[kind](any_path(location), keep_slots=keep_slots)


def _open_adapter(folder: Path, base: str | Path | None) -> CheckpointSource:
    base = base or adapter_folders.read_base_path(folder)
    _recognise_base(folder, base)
    source = open_source(base, keep_slots=False)
    try:
        return adapter_folders.AdapterSource(folder, source)
    except UserError:
        source.close()
        raise


def _recognise_base(folder: Path, base: str | Path) -> tuple[str, str]:
    """Returns the result of `recognise` for an adapter's base.

    Raises:
      UserError: if the base is missing, or is an adapter itself.
    """
    try:
        if not str(base):  # `recognise` would look in the working directory
            raise UserError("its config names no base")
        kind, location = recognise(base)
    except UserError as error:
        raise UserError(
            f"{folder} is an adapter, and its base {str(base)!r} is not here. Name the base, "
            f"and add --adapter={folder} ({error})"
        ) from error
    if kind == "adapter":
        raise UserError(
            f"{folder} is an adapter, and so is its base {base}; expected one adapter. Merge the "
            f"base: t0 convert BASE NEW --adapter {base} --merge --to hf"
        )
    return kind, location


def recognise(path: str | Path, *, step: int | None = None) -> tuple[str, str]:
    """Detects the format of a checkpoint and finds the checkpoint itself.

    Returns:
      the format ("mtf", "hf", "t5x", "torch" or "adapter"), and the prefix or the folder of the
      checkpoint.

    Raises:
      UserError: if there is no checkpoint.
    """
    path = any_path(path)
    if path.is_file() and path.name in (SINGLE, INDEX):
        path = path.parent
    shards = _torch_folder(path, step)
    if shards:
        return "adapter" if adapter_folders.find(shards) else "torch", str(shards)
    prefix = mtf.find_prefix(path, step)
    if prefix:
        return "mtf", prefix
    folder = t5x.find_folder(path, step)
    if folder:
        return "t5x", str(folder)
    if hugging_face.is_folder(path):
        return "hf", str(path)
    if adapter_folders.find(path):
        return "adapter", str(path)
    if not path.exists():
        steps = (
            ", ".join(map(str, checkpoint_files.prefixes(path.parent)))
            if path.parent.is_dir()
            else ""
        )
        existing = f". {path.parent} has checkpoints of the steps: {steps}" if steps else ""
        raise UserError(f"{path} does not exist, and is not the prefix of a checkpoint{existing}")
    other_folders.check(path)
    raise UserError(
        f"{path} has no checkpoint; expected model.ckpt-STEP.index (Mesh TensorFlow), config.json "
        "with safetensors (Hugging Face), or checkpoint_STEP/checkpoint (T5X)"
        + other_folders.hint(path)
    )


def _torch_folder(path: Path, step: int | None) -> Path | None:
    """Returns the folder of the PyTorch engine's checkpoint in `path`, or None.

    The result is None if `path` has no checkpoint of the PyTorch engine, or if Mesh TensorFlow's
    latest checkpoint has a larger step.
    """
    if not isinstance(path, Path):  # a bucket, to which the PyTorch engine does not write
        return None
    newest = torch_shards.find_folder(path, step)
    if newest is None or newest == path or step is not None:
        return newest
    steps = torch_shards.steps(path)
    return steps.get(checkpoint_files.latest_step(path, steps))


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str,
    adapter: Path | None = None,
    options: ConversionOptions | None = None,
) -> ConversionReport:
    """Converts a checkpoint. Shows the progress on stderr if it is a terminal.

    Args:
      source: the path of the source, see `open_source`.
      destination: a folder that does not exist yet or is empty.
      to: the target's format: "mtf", "hf" or "t5x".
      adapter: the folder of an adapter to merge into the source's weights, or None.
      options: the options of the conversion.

    Raises:
      UserError: if there is a problem with the source, the options, the destination or the disk. In
        this case, no files are left.
    """
    options = options or ConversionOptions()
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS, f"The formats are {', '.join(FORMATS)}.")
    destination = any_path(destination)
    if adapter:
        _, base = recognise(source, step=options.step)
        checkpoint = open_source(adapter, base=base)
    else:
        checkpoint = open_source(source, step=options.step, keep_slots=not options.drop_slots)
    with contextlib.closing(checkpoint):
        plan, notes = make_plan(checkpoint, to, options)
        _remove_unfinished(destination.parent)
        check_destination(destination, plan.nbytes)
        with (
            _stage(destination, FORMATS[to].last) as folder,
            contextlib.closing(FORMATS[to](folder, plan)) as target,
        ):
            rows = _copy_tensors(checkpoint, target)
            target.finish()
    dropped = [
        (entry.native, f"{to} does not store it")
        for name, entry in checkpoint.entries.items()
        if name not in plan.entries
    ]
    return ConversionReport(
        kinds=(checkpoint.kind, to),
        rows=rows,
        left_out=[*checkpoint.unused, *dropped],
        notes=notes,
        nbytes=plan.nbytes,
    )


def as_mesh_checkpoint(path: str | Path, workdir: str | Path, *, slots: bool = True) -> str:
    """Returns the prefix of a Mesh TensorFlow checkpoint with the weights of `path`.

    A Mesh TensorFlow checkpoint, even on gs://, is used directly. Any other checkpoint is converted
    into `workdir`. If the source has not changed, a second call uses the result of the first call.

    Args:
      path: a checkpoint in any format.
      workdir: the folder for converted checkpoints.
      slots: whether to convert the optimizer's state.

    Raises:
      UserError: if there is a problem with the source or with `workdir`, as in `convert`.
    """
    if "://" in str(path):
        return str(path)
    kind, location = recognise(path)
    if kind == "mtf":
        return location
    if "://" in str(workdir):
        raise UserError(
            f"{path} is a {_TITLES[kind]} checkpoint and must be converted first. The converted "
            f"checkpoint would be written to {workdir}, which is not on this machine. Run "
            f"`t0 convert {path} DST --to mtf`, copy DST there, and use that path"
        )
    folder = folder_of_converted(path, workdir, slots=slots)
    if not folder.is_dir():
        _convert_once(location, folder, _choose_mesh_options(location, slots=slots))
    return recognise(folder)[1]


def folder_of_converted(path: str | Path, workdir: str | Path, *, slots: bool) -> Path:
    """Returns the folder in `workdir` into which `as_mesh_checkpoint` converts a checkpoint."""
    kind, location = recognise(path)
    # Earlier versions hashed the same text, so the checkpoints that they converted are found.
    source_hash = fingerprint(kind, location, f"None {slots}")
    return Path(workdir) / f"{Path(location).absolute().name}-{source_hash}"


def make_plan(
    source: CheckpointSource, to: str, options: ConversionOptions
) -> tuple[TargetPlan, list[str]]:
    """Plans the target of a conversion.

    Returns:
      the plan, and notes that the user must read.

    Raises:
      UserError: if the options do not fit the source.
    """
    notes: list[str] = []
    dtype = _choose_dtype(source, options)
    model = source.model
    if options.vocabulary_rows and options.vocabulary_rows != model.vocabulary:
        if len(source.parameters) != len(source.entries):
            raise UserError("--vocabulary_rows changes shapes: add --drop_slots")
        notes.append(
            f"the vocabulary goes from {model.vocabulary:,} rows to {options.vocabulary_rows:,}"
        )
        model = dataclasses.replace(model, vocabulary=options.vocabulary_rows)
    entries = {
        name: _plan_entry(name, entry, model, dtype) for name, entry in source.entries.items()
    }
    facts = _choose_facts(source, to, options, notes)
    origin = f"{_TITLES[source.kind]}: {any_path(source.path).name}"
    plan = FORMATS[to].adapt_plan(TargetPlan(model, entries, facts, options, origin))
    if lost := len(entries) - len(plan.entries):
        notes.append(f"{lost:,} optimizer slots are left out: {to} does not store them")
    return plan, notes


def _choose_facts(
    source: CheckpointSource, to: str, options: ConversionOptions, notes: list[str]
) -> CheckpointFacts:
    facts = source.facts
    activation = options.activation or facts.activation
    if activation is None:
        activation = source.model.usual_activation
        if to != "t5x":  # T5X does not store the activation
            notes.append(
                f"the source does not name its feed-forward activation: using {activation}, as in "
                "T5 (set another with --activation)"
            )
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    if options.activation and facts.activation and options.activation != facts.activation:
        raise UserError(f"--activation {activation}, but {source.path} has {facts.activation}")
    step = options.step if options.step is not None else facts.step
    if step != facts.step and facts.step is not None:
        notes.append(f"step {step:,} is written; the source has {facts.step:,}")
    if step is None:
        step = 0
        notes.append("the source has no step: 0 is written (set another with --step)")
    rows = options.vocabulary_rows or source.model.vocabulary
    pieces = _choose_tokenizer(facts, options, rows, notes)
    if pieces and to == "hf" and (reason := tokenizer.unexportable(pieces)):
        if options.tokenizer:
            raise UserError(f"the tokenizer {pieces} {reason}: leave out --vocab")
        notes.append(f"{pieces} {reason}: no tokenizer is written")
        pieces = None
    elif to == "hf" and not pieces and not facts.tokenizer_fault:
        pieces = _choose_default_tokenizer(options.default_tokenizer, rows, notes)
    return dataclasses.replace(facts, step=step, activation=activation, tokenizer=pieces)


def _choose_tokenizer(
    facts: CheckpointFacts, options: ConversionOptions, rows: int, notes: list[str]
) -> Path | None:
    """Returns the SentencePiece model to copy next to the tensors, or None."""
    pieces = options.tokenizer or facts.tokenizer
    if pieces:
        tokenizer.check(pieces, rows)
        return pieces
    if facts.tokenizer_fault:
        notes.append(f"no tokenizer is written (set one with --vocab): {facts.tokenizer_fault}")
    return None


def _choose_default_tokenizer(path: Path | None, rows: int, notes: list[str]) -> Path | None:
    """Returns `path` if its ids fit an embedding of `rows`; else None, and notes the reason."""
    reason = "neither the source nor --vocab or T0_VOCAB has one"
    if path:
        try:
            fault = tokenizer.misfit(path, rows) or tokenizer.unexportable(path)
            reason = f"{path} {fault}"
        except UserError as error:
            fault = reason = str(error)
        if not fault:
            notes.append(f"the source has no vocabulary: the tokenizer is that of {path}")
            return path
    notes.append(
        f"the new folder has no tokenizer ({reason}), and Transformers would open it with an empty "
        "one. Convert again with --vocab=SPIECE.MODEL, the vocabulary of the model"
    )
    return None


def _choose_dtype(source: CheckpointSource, options: ConversionOptions) -> np.dtype | None:
    if options.dtype is not None:
        if options.dtype not in DTYPES:
            raise unknown_name("dtype", options.dtype, DTYPES, f"It is one of {', '.join(DTYPES)}.")
        return DTYPES[options.dtype]
    unsupported = [
        f"{entry.native} {entry.dtype}"
        for entry in source.entries.values()
        if entry.dtype not in DTYPES.values()
    ]
    if unsupported:
        raise UserError(
            f"{source.path} has {len(unsupported):,} tensors that are neither float32 nor "
            f"bfloat16. Add --dtype float32, which keeps their values exactly:{listed(unsupported)}"
        )
    return None


def _plan_entry(
    name: str, entry: TensorEntry, model: ModelShape, dtype: np.dtype | None
) -> TensorEntry:
    # Mesh TensorFlow keeps slots in float32, even if the parameters have another dtype.
    if names.split_slot(name)[1]:
        return entry
    shape = tuple(model.sizes[letter] for letter in names.row_of(name).dims)
    return dataclasses.replace(entry, shape=shape, dtype=dtype or entry.dtype)


def _fit_array(name: str, array: np.ndarray, entry: TensorEntry) -> np.ndarray:
    """Casts an array to the planned dtype and adds or removes vocabulary rows as planned."""
    array = array.astype(entry.dtype, copy=False)
    if array.shape == entry.shape:
        return array
    axis = names.row_of(name).dims.index("V")
    rows = np.arange(entry.shape[axis])
    # Added rows are copies of the padding token's row. That token is never a target, so a trained
    # model gives these rows almost no probability.
    return np.take(array, np.where(rows < array.shape[axis], rows, 0), axis=axis)


def _copy_tensors(source: CheckpointSource, target: CheckpointTarget) -> list[ConvertedTensor]:
    rows, plan = [], target.plan
    # `disable=None` shows the progress only on a terminal.
    with tqdm(total=plan.nbytes, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for name, entry in plan.entries.items():
            array = _fit_array(name, source.load(name), entry)
            target.write(name, array)
            written = (entry.native, entry.shape, entry.dtype.name, checksum(array))
            rows.append(ConvertedTensor(name, *written))
            bar.update(entry.nbytes)
            del array
    return rows


def check_destination(destination: Path, nbytes: int) -> None:
    """Checks that a checkpoint can be written.

    Args:
      destination: a folder that does not exist yet or is empty.
      nbytes: the size of the tensors to write, in bytes.

    Raises:
      UserError: if the folder is not empty or cannot be replaced by another folder, or the disk has
        too little space.
    """
    if paths.is_remote(destination):
        # Ignore the probe files of `check_writable`, which remain if the process was killed.
        names = [n for n in paths.list_names(destination) if not publishing.is_unfinished(n)]
        occupied = names and _UNFINISHED not in names
        folder = Path(tempfile.gettempdir())
    else:
        occupied = destination.exists() and (not destination.is_dir() or any(destination.iterdir()))
        folder = next(p for p in (destination, *destination.absolute().parents) if p.is_dir())
    if occupied:
        raise UserError(f"{destination} exists and is not empty: choose a new folder")
    if isinstance(destination, Path) and (
        destination.is_symlink() or destination.is_mount() or not destination.name
    ):
        raise UserError(
            f"{destination} is a link, a mounted folder or the current folder, and cannot become "
            "the checkpoint: choose a new folder in it"
        )
    needed, free = nbytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the checkpoint needs {needed / 1e9:,.2f} GB, but the disk of {folder} has only "
            f"{free / 1e9:,.2f} GB free: choose another destination, or free some space"
        )
    if paths.is_remote(destination):
        publishing.check_writable(str(destination))
    elif not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written: permission denied")


@contextlib.contextmanager
def _stage(destination: Path, last: str) -> Iterator[Path]:
    """Yields a hidden folder, which becomes the destination if the `with` block raises no error."""
    remote = paths.is_remote(destination)
    parent = Path(tempfile.gettempdir()) if remote else destination.parent
    folder = parent / f".{destination.name}.{uuid.uuid4().hex}.{publishing.unfinished_tag()}"
    try:
        with publishing.writing(str(destination)):
            folder.mkdir(parents=True)
            yield folder
            if remote:
                _upload(folder, destination, last)
            else:
                os.replace(folder, destination)  # noqa: PTH105 (rename onto an empty folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload(folder: Path, destination: Path, last: str) -> None:
    """Uploads a checkpoint's files; the file that completes the checkpoint is uploaded last.

    During the upload, a marker file shows that the destination is unfinished. If the upload is
    interrupted, the next conversion replaces the files.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.match(last))
    for name in paths.list_names(destination):
        if name != _UNFINISHED:
            paths.remove(destination / name)
    (destination / _UNFINISHED).write_text("a conversion that is running, or was stopped\n")
    for path in files:
        paths.copy(path, destination / path.relative_to(folder))
    paths.remove(destination / _UNFINISHED)


def _remove_unfinished(parent: Path) -> None:
    """Removes the hidden folders of killed conversions from `parent`."""
    if paths.is_remote(parent):
        return
    with contextlib.suppress(OSError):  # the folder is missing, or belongs to another user
        dead = publishing.leftovers([str(parent)])
        for path in dead:
            if Path(path).name.startswith("."):
                paths.remove(path)


def _choose_mesh_options(location: str, *, slots: bool) -> ConversionOptions:
    with contextlib.closing(open_source(location, keep_slots=slots)) as source:
        rows = source.model.vocabulary
        dtypes = {entry.dtype for entry in source.parameters.values()}
        padded = -(-rows // 128) * 128
        return ConversionOptions(
            step=source.facts.step or 0,
            dtype=None if dtypes in ({FLOAT32}, {BFLOAT16}) else "float32",
            vocabulary_rows=padded if padded != rows else None,
            # The run's gin files define the model, so the gin file next to the checkpoint is not
            # used.
            activation=source.facts.activation or source.model.usual_activation,
            drop_slots=not slots or padded != rows,
        )


def _convert_once(location: str, folder: Path, options: ConversionOptions) -> None:
    print(f"converting {location} into {folder}", file=sys.stderr, flush=True)
    try:
        report = convert(location, folder, to="mtf", options=options)
    except UserError:
        if folder.is_dir():  # another process has converted it in the meantime
            return
        raise
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr, flush=True)


def fingerprint(kind: str, location: str, settings: str) -> str:
    """Returns a hash of a source's path, of its files' sizes and times, and of the settings.

    The hash of an adapter includes that of its base. The hash of a Mesh TensorFlow checkpoint is
    that of its index.
    """
    if kind == "mtf":
        return checkpoint_files.fingerprint(location)
    folder = any_path(location)
    files = sorted({path for pattern in _READ[kind] for path in folder.glob(pattern)})
    if kind == "adapter":
        base = adapter_folders.read_base_path(folder)
        settings += fingerprint(*_recognise_base(folder, base), "")
    file_states = [f"{p}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in files if p.is_file()]
    text = "\n".join([str(folder.absolute()), settings, *file_states])
    return checksum(np.frombuffer(text.encode(), np.uint8))
