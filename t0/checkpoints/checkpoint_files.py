"""Reads the steps, variables and vocabulary size of a model directory without building a model.

    steps("/models/tiny")                                       # [0, 1000]
    latest_step("/models/tiny")                                 # 1000
    check_variables("/models/tiny/model.ckpt-1000", expected)   # UserError if they do not fit

TensorFlow is not imported.
"""

import glob
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from t0.checkpoints import torch_shards
from t0.checkpoints.bundle import BundleReader, CheckpointState, shape_of
from t0.checkpoints.shape import listed
from t0.errors import UserError, refuse_unanswered, short_reason
from t0.files import paths
from t0.files.any_path import any_path

if TYPE_CHECKING:
    from t0.compat import tf1 as tf

STEP = "global_step"
_STATE = "checkpoint"  # the file in which TensorFlow names the latest checkpoint
_MOST_STATE_BYTES = 2**20
# The embedding's names in Mesh TensorFlow's layouts. The last dimensions are [vocabulary, d_model].
_EMBEDDINGS = ("shared/embedding", "encoder/embedding", "decoder/embedding", "embedding")


def prefixes(folder: Path) -> dict[int, str]:
    """Returns step -> prefix of each checkpoint in a model directory, in ascending order."""
    pattern = re.compile(r"(model\.ckpt-(\d+))\.index")
    matches = filter(None, map(pattern.fullmatch, paths.names_like(folder, "model.ckpt-*.index")))
    return dict(sorted((int(match[2]), str(folder / match[1])) for match in matches))


def steps(model_dir: str) -> list[int]:
    """Returns the steps of the checkpoints in `model_dir`, ascending."""
    return list(prefixes(any_path(model_dir)))


def latest_step(model_dir: str | Path, also: Iterable[int] = ()) -> int | None:
    """Returns the step of the checkpoint that a folder stands for; None if it has no checkpoint.

    As in Mesh TensorFlow and in a resumed run, this is the checkpoint that the file `checkpoint`
    names. Without this file, or if that checkpoint was deleted, it is the one with the largest
    step.

    Args:
      model_dir: the folder.
      also: the steps of the PyTorch engine's checkpoints in the folder, which this file does not
        name. Both engines train from the newest checkpoint, so the larger step is returned.

    Raises:
      UserError: if the file names a checkpoint that is not in the folder.
    """
    folder = any_path(model_dir)
    steps_of_mesh = {path: step for step, path in prefixes(folder).items()}
    named_path = _named_in(folder) if steps_of_mesh else None
    if named_path not in (None, *steps_of_mesh):
        raise UserError(
            f"the file {folder / _STATE} names {named_path} as the latest checkpoint; expected a "
            f"name such as {max(steps_of_mesh, key=steps_of_mesh.get)}. Name the checkpoint to read"
        )
    chosen = [steps_of_mesh[named_path]] if named_path else steps_of_mesh.values()
    return max([*chosen, *also], default=None)


def _named_in(folder: Path) -> str | None:
    """Returns the checkpoint in `folder` that the file `checkpoint` names; None if it is missing.

    The folder may be a copy, so a checkpoint with the same name counts. No other folder is read,
    because another person may have written the file.

    Raises:
      UserError: if another folder has, or may have, the checkpoint that the file names.
    """
    path = _read_state(folder)
    if path is None:
        return None
    named_folder, name = os.path.split(path)
    if _is_complete(str(folder), name):
        return str(folder / name)
    elsewhere = os.path.join(folder, named_folder)  # noqa: PTH118
    if paths.is_remote(named_folder) or (
        os.path.normpath(elsewhere) != os.path.normpath(folder) and _is_complete(elsewhere, name)
    ):
        raise UserError(
            f"the file {folder / _STATE} names {path} as the latest checkpoint, and "
            "this checkpoint is in another folder; name the checkpoint to read, such as "
            f"{next(reversed(prefixes(folder).values()))}"
        )
    return None


def latest(model_dir: str) -> str | None:
    """Returns the checkpoint from which training resumes; None for a new model.

    Usually this is the checkpoint that the file `checkpoint` names, as in TensorFlow. But if a run
    was killed before it wrote the file, or if somebody deleted checkpoints, the file may be missing
    or unreadable, or it may name a deleted checkpoint. Then this function returns the newest
    checkpoint that is complete according to its index.

    Raises:
      UserError: if there are checkpoints, but no checkpoint is complete.
    """
    named_path = named(model_dir)
    if named_path:
        return named_path
    reasons = []
    for step in reversed(steps(model_dir)):
        path = checkpoint_path(model_dir, step)
        try:
            BundleReader(path).close()
            return path
        except UserError as error:
            reasons.append(str(error))
    if reasons:
        raise UserError(
            f"{model_dir} has {len(reasons)} checkpoints, but none is complete: {reasons[0]}. "
            "To start over, set another --model_dir, or remove the model.ckpt-* files"
        )
    return None


def named(model_dir: str) -> str | None:
    """Returns the checkpoint that the file `checkpoint` names; None if any of its files is missing.

    The result is also None if the file `checkpoint` cannot be read. To find missing files, this
    function looks only at the names of files and reads no data.
    """
    path = _read_state(model_dir)
    if path is None:
        return None
    folder, name = os.path.split(os.path.join(model_dir, path))  # noqa: PTH118
    return os.path.join(folder, name) if _is_complete(folder, name) else None  # noqa: PTH118


def _read_state(folder: Path) -> str | None:
    """Returns the path in the file `checkpoint`; None if the file cannot be read."""
    try:
        with paths.opened(os.path.join(folder, _STATE)) as file:  # noqa: PTH118
            return latest_path(file.read(_MOST_STATE_BYTES).decode())
    except (OSError, ValueError) as error:  # TensorFlow also ignores such a file
        refuse_unanswered(error)
        return None


def _is_complete(folder: str, name: str) -> bool:
    """Returns whether a checkpoint has all of its files."""
    names = paths.names_like(folder or ".", f"{glob.escape(name)}*")
    if f"{name}.index" not in names:
        return False
    data = re.compile(re.escape(name) + r"\.data-\d{5}-of-(\d{5})")
    ends = [match[1] for match in map(data.fullmatch, names) if match]
    return any(ends.count(each) == int(each) for each in ends)


def latest_path(state: str) -> str:
    """Returns the path of the latest checkpoint that the file `checkpoint` names.

    Args:
      state: the text of the file.

    Returns:
      the path as written in the file, relative or absolute.

    Raises:
      ValueError: if the text does not have the format of this file, or names no checkpoint.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unknown escape in a text is an error
            path = text_format.Merge(state, CheckpointState()).model_checkpoint_path
    except (text_format.ParseError, DeprecationWarning) as error:
        raise ValueError(f"not the state of a saver: {error}") from error
    if not path or "\0" in path:
        raise ValueError("it names no checkpoint")
    return path


def checkpoint_path(model_dir: str, step: int) -> str:
    """Returns the checkpoint prefix of `step`."""
    return os.path.join(model_dir, f"model.ckpt-{step}")  # noqa: PTH118


def select_steps(
    model_dir: str,
    wanted: int | list[int] | str | None,
    also: Iterable[int] = (),
    *,
    closest: bool = True,
    after: int = -1,
) -> list[int]:
    """Returns the steps to evaluate.

    Args:
      model_dir: a folder with `model.ckpt-*` files.
      wanted: a step, a list of steps, or "all". None and -1 mean the latest step, see
        `latest_step`. If a step has no checkpoint, the closest step with a checkpoint is chosen, as
        in T5.
      also: the steps of the PyTorch engine's checkpoints in the folder, if the caller reads them.
      closest: whether the closest step is chosen for a step without a checkpoint. Otherwise, such
        a step is left out (`get_checkpoint_iterator.find_closest`).
      after: with "all", only larger steps are returned (`get_checkpoint_iterator.skip_until`).

    Raises:
      UserError: if the folder has no such checkpoint, or if its latest checkpoint is one of the
        PyTorch engine that the caller does not read.
    """
    also = [*also]
    # None in a bucket, which that engine does not write.
    shards = torch_shards.steps(Path(model_dir))
    present = sorted({*steps(model_dir), *also})
    if not present:
        if shards:
            raise UserError(
                f"{model_dir} has checkpoints of the PyTorch engine only, such as "
                f"torch.ckpt-{max(shards)}: add --engine=torch, or use --checkpoint={model_dir}"
            )
        raise UserError(
            f"no checkpoint (model.ckpt-STEP.index) in {model_dir}: set a folder that has one with "
            "--model_dir, or a checkpoint of any format with --checkpoint"
        )
    if wanted == "all":
        if after >= present[-1]:
            raise UserError(
                f"get_checkpoint_iterator.skip_until is {after}, and the last checkpoint in "
                f"{model_dir} is of step {present[-1]}; expected a smaller number"
            )
        return [step for step in present if step > after]
    if wanted is None or wanted == -1:
        step = latest_step(model_dir, also)
        if not also and max(shards, default=-1) > step:
            raise UserError(
                f"{model_dir} has a newer checkpoint of the PyTorch engine, torch.ckpt-"
                f"{max(shards)}: add --engine=torch, or use --checkpoint={model_dir}, or choose a "
                f"step, such as run.eval_checkpoint_step = {step}"
            )
        return [step]
    requested = [wanted] if isinstance(wanted, int) else wanted
    if not isinstance(requested, list | tuple) or not all(
        isinstance(step, int) for step in requested
    ):
        raise UserError(f"eval_checkpoint_step is {wanted!r}; expected a step, a list, or 'all'")
    if not closest and not {*requested} & {*present}:
        raise UserError(
            f"get_checkpoint_iterator.find_closest is False, and {model_dir} has no checkpoint of "
            f"step {', '.join(map(str, requested))}; it has {', '.join(map(str, present))}"
        )
    if not closest:
        return sorted({*requested} & {*present})
    chosen = [min(present, key=lambda step: (abs(step - goal), step)) for goal in requested]
    return sorted(set(chosen))


def read(checkpoint: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns name -> (shape, name of the dtype) for a checkpoint's variables.

    Args:
      checkpoint: a checkpoint prefix, or a folder. For a folder, its latest checkpoint is read.

    Raises:
      UserError: if the checkpoint does not exist, or its index cannot be read.
    """
    with _open(checkpoint) as reader:
        return {
            name: (shape_of(entry), reader.dtype(name).name)
            for name, entry in reader.entries.items()
        }


def _open(checkpoint: str) -> BundleReader:
    folder = paths.is_folder(checkpoint)
    return BundleReader((latest(checkpoint) if folder else None) or checkpoint)


def read_graph(variables: "Iterable[tf.Variable]") -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns name -> (shape, dtype) for a graph's variables, in the same form as `read`."""
    return {v.op.name: (tuple(v.shape.as_list()), v.dtype.base_dtype.name) for v in variables}


def global_step(checkpoint: str) -> int:
    """Returns the step at which a checkpoint was saved; 0 if it has no step.

    Args:
      checkpoint: a checkpoint prefix, or a folder. For a folder, its latest checkpoint is read.

    Raises:
      UserError: if the checkpoint does not exist, or it cannot be read.
    """
    with _open(checkpoint) as reader:
        return int(reader.load(STEP)) if STEP in reader.entries else 0


def weights_dtype(checkpoint: str) -> str | None:
    """Returns the dtype of a checkpoint's weights; None if the weights have several dtypes.

    Raises:
      UserError: if the checkpoint does not exist, or its index cannot be read.
    """
    types = {
        dtype
        for name, (_, dtype) in read(checkpoint).items()
        if "float" in dtype and "_slot_" not in name
    }
    return types.pop() if len(types) == 1 else None


def fingerprint(checkpoint: str) -> str:
    """Returns a hash that two checkpoints share only if all their values are equal.

    The result is the hash of the index. The index has a checksum of every tensor, so this function
    does not read the tensors.

    Raises:
      UserError: if the checkpoint does not exist.
    """
    try:
        return hashlib.sha256(paths.read_bytes(f"{checkpoint}.index")).hexdigest()
    except OSError as error:
        raise UserError(f"checkpoint {checkpoint} cannot be read: {short_reason(error)}") from error


def vocabulary_size(checkpoint: str) -> int | None:
    """Returns the padded vocabulary size of a checkpoint; None if it has no embedding."""
    present = read(checkpoint)
    return next((int(present[name][0][-2]) for name in _EMBEDDINGS if name in present), None)


def check_vocabulary(
    checkpoint: str, *, vocabulary: int, divisor: int, source: str, rows: int | None = None
) -> None:
    """Checks that a vocabulary has the size with which the checkpoint was trained.

    Args:
      checkpoint: a checkpoint prefix.
      vocabulary: the number of ids in the SentencePiece model, including sentinels.
      divisor: the model's padded vocabulary size is a multiple of this number (128 in T5).
      source: the vocabulary's path, for the message.
      rows: the padded vocabulary size of the checkpoint; None to read it from the checkpoint.

    Raises:
      UserError: if the sizes differ. The message contains both sizes.
    """
    trained = vocabulary_size(checkpoint) if rows is None else rows
    padded = -(-vocabulary // divisor) * divisor
    if trained is not None and trained != padded:
        raise UserError(
            f"the vocabulary {source} has {vocabulary} ids ({padded} padded to a multiple of "
            f"{divisor}), but the checkpoint {checkpoint} was trained with {trained}. "
            "Set the checkpoint's own vocabulary with --vocab"
        )


def check_variables(checkpoint: str, expected: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Checks that a checkpoint has every variable of a model, with the right shape and dtype.

    Args:
      checkpoint: a checkpoint prefix.
      expected: name -> (shape, dtype) of the model's variables.

    Raises:
      UserError: if variables are missing or differ. The message names the first of these variables.
    """
    present = read(checkpoint)
    differing = [
        f"{name}: {list(present[name][0])}, the configured model {list(shape)}"
        for name, (shape, _) in sorted(expected.items())
        if name in present and present[name][0] != shape
    ]
    missing = sorted(set(expected) - set(present))
    if missing or differing:
        config = os.path.join(os.path.dirname(checkpoint), "operative_config.gin")  # noqa: PTH118,PTH120
        own = f"its own --gin_file={config}" if paths.exists(config) else "those of its model"
        if missing:
            differing.append(
                f"{len(missing)} of the model's {len(expected)} variables are missing, such as "
                f"{missing[0]}"
            )
        raise UserError(
            f"checkpoint {checkpoint} does not match the model that the gin files configure:"
            f"{listed(differing)}\nUse {own}, or another --model_dir (or another checkpoint)"
        )
    for name, (_, dtype) in sorted(expected.items()):
        stored = present[name][1]
        if stored != dtype:
            raise UserError(
                f"checkpoint {checkpoint} has {name} as {stored}, the configured model as "
                f"{dtype}: add --gin_param=\"get_variable_dtype.master_dtype = '{stored}'\""
            )
