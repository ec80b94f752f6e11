"""Writes and reads sharded checkpoints of a run on PyTorch, and fills weights from any checkpoint.

    checkpoints = Checkpoints(model_dir, model, optimizer, world, Keep(last=2), "spm.model")
    checkpoints.save(100, {"position": position, ...}, best=80)
    record = checkpoints.restore(100)

The checkpoint of step 100 is the folder `torch.ckpt-100`. It contains a safetensors file from each
process, which `torch.distributed.checkpoint` writes, and `resume.json` with the position in the
data and other state of the run. Any number of processes can read a checkpoint. Each of them reads
only its own rows of each weight. A folder gets its final name only when all of it is on the disk.
No file is pickled.

    export_to_mesh(Path("/models/tiny/torch.ckpt-20"), "/models/tiny_mtf")   # with the position

An export is converted one tensor at a time. The TensorFlow engine can resume the run in the folder
that `export_to_mesh` writes. Its next batch is the one that the PyTorch engine would have used.

    load(model, optimizer, "/models/t0_3b", world)       # every process reads its own rows
    warm_start(model, optimizer, "/models/t5", world)    # some variables may be missing
    fill_at_random(model, seed=0, world=world)           # Mesh TensorFlow's distributions

These functions read checkpoints in all formats. Names and orientations of weights are the canonical
ones of `t0.checkpoints.names`.
"""

import contextlib
import hashlib
import itertools
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Replicate, Shard

from t0.checkpoints import adapter_folders, checkpoint_files, conversion, names, torch_shards
from t0.checkpoints.bundle import BundleReader, shape_of
from t0.checkpoints.checkpoint_files import STEP
from t0.checkpoints.conversion import ConversionOptions, check_destination, convert, open_source
from t0.checkpoints.formats import FLOAT32, CheckpointSource
from t0.checkpoints.shape import combined, expected_shapes, slot_shape
from t0.checkpoints.torch_shards import RECORD
from t0.errors import UserError, short_reason
from t0.files import publishing
from t0.torch.adapters import adapter_parameters
from t0.torch.model import T5
from t0.torch.optimizers import Optimizer, Slot
from t0.torch.processes import World
from t0.torch.sharding import local_rows, names_and_parameters, own_rows
from t0.training import model_directory, recorder, resume_file
from t0.training.model_directory import Keep, select_retained_steps

_SAVING = ".saving-torch-"
# The dimensions of the weights in Mesh TensorFlow's dense layers. The initial values of these
# weights are drawn within two standard deviations of zero.
_TRUNCATED = ("DF", "FD", "DV")


def steps(model_dir: str) -> list[int]:
    """Returns the steps of all complete checkpoints in a model directory, in ascending order."""
    return list(torch_shards.steps(Path(model_dir)))


def folder_of(model_dir: str, step: int) -> Path:
    """Returns the folder of the checkpoint of a step."""
    return Path(model_dir) / f"torch.ckpt-{step}"


class Checkpoints:
    """The checkpoints of one run.

    Args:
      model_dir: the model directory, to which every process must be able to write.
      optimizer: the optimizer of the model.
      world: the processes of the run.
      keep: the rules for keeping and removing older checkpoints.
      vocabulary: the path of the SentencePiece model.

    Attributes:
      write_adapter: a function of a folder and a step that writes the adapter, if only an adapter
        is trained. Checkpoints then have the adapter, but not the frozen weights. Otherwise None.
    """

    def __init__(
        self,
        model_dir: str,
        model: T5,
        optimizer: Optimizer,
        world: World,
        keep: Keep,
        vocabulary: str,
    ) -> None:
        self._model_dir, self._world, self._keep = model_dir, world, keep
        self._facts = {
            "activation": model.spec.activation,
            "dropout_rate": model.spec.dropout.residual,
            "legacy_norms": model.spec.legacy_norms,
            "vocabulary": vocabulary,
        }
        self._model, self._optimizer = model, optimizer
        self._own: list[int] = []
        self.write_adapter: Callable[[Path, int], None] | None = None

    def save(self, step: int, record: Mapping[str, Any], best: int | None = None) -> Path:
        """Writes the checkpoint of a step. All processes must call this method.

        Args:
          step: the number of finished steps.
          record: the state of the run, which `restore` will return.
          best: the step of the best checkpoint so far; None if there is none.

        Raises:
          UserError: if the checkpoint cannot be written. Earlier checkpoints then stay unchanged.
        """
        target = folder_of(self._model_dir, step)
        staging = target.with_name(f"{_SAVING}{step}")
        own = sorted({*self._own, step})
        try:
            if self._world.first:
                publishing.remove_leftovers([self._model_dir])
                for path in Path(self._model_dir).glob(f"{_SAVING}*"):
                    shutil.rmtree(path)
                staging.mkdir(parents=True)
            self._world.wait()
            writer = dcp.HuggingFaceStorageWriter(str(staging), save_distributed=True)
            dcp.save(self._state(), storage_writer=writer)
            if self.write_adapter:
                self.write_adapter(staging, step)
                self._world.wait()
            checksums = self._checksums(staging)
            if self._world.first:
                files = {name: (staging / name).stat().st_size for name in checksums}
                facts = {"own": own, "files": files, "model": self._facts}
                text = torch_shards.record_text({"step": step, **record, **facts}, checksums)
                (staging / RECORD).write_text(text, encoding="utf-8")
                _publish(staging, target)
        except (OSError, CheckpointException) as error:
            # PyTorch's exception has the failures of all processes.
            failure = next(iter(getattr(error, "failures", {}).values()), error)
            reason = short_reason(failure[0] if isinstance(failure, tuple) else failure)
            raise UserError(
                f"checkpoint {target} cannot be saved: {reason}. Earlier checkpoints are intact. "
                "Make room and start the same command again"
            ) from error
        self._world.wait()
        retained = select_retained_steps(own, self._keep, best)
        if self._world.first:
            for old in set(own) - set(retained):
                _remove(folder_of(self._model_dir, old))
        self._own = retained
        return target

    def restore(self, step: int) -> dict[str, Any]:
        """Loads the weights and the optimizer's slots bit for bit; returns the record of the run.

        Raises:
          UserError: if the checkpoint is damaged, or belongs to another model or optimizer.
        """
        path = folder_of(self._model_dir, step)
        record = torch_shards.read_record(path, resume_file.check_record)
        # Without this check, if a file is missing, its rows would silently keep their present
        # values.
        torch_shards.checked_files(path, record["files"])
        self._check_checksums(path, record)
        state = self._state()
        try:
            dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(path)))
        except (CheckpointException, RuntimeError, ValueError, KeyError, OSError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise UserError(
                f"checkpoint {path} cannot be read ({reason:.200}). Is it of another model or "
                "optimizer, or damaged? To resume from an older one, remove this folder"
            ) from error
        own = record.pop("own")
        self._own = [s for s in steps(self._model_dir) if s in own]
        if self._world.first:
            for old in set(own) - set(self._own):  # removed, or left by a run killed while removing
                _remove(folder_of(self._model_dir, old))
        return record

    def write_model_info(self) -> None:
        """Writes the list of the model's weights and the optimizer's slots."""
        legacy = self._model.spec.legacy_norms
        weights = {
            names.to_mtf(name, legacy_norms=legacy): shape
            for name, shape in expected_shapes(self._model.spec.sizes).items()
        }
        trained = adapter_parameters(self._model)
        weights |= {name: tuple(parameter.shape) for name, parameter in trained.items()}
        slots = {
            name: slot_shape(weights[slot.weight], slot.kind)
            for name, slot in self._optimizer.slots.items()
        }
        model_directory.write_model_info(self._model_dir, weights | slots, weights)

    def _checksums(self, folder: Path) -> dict[str, str]:
        """Returns name of a file -> its SHA-256, for a new checkpoint. Processes share the work."""
        # All processes use the list of files from the first process, because a network folder may
        # show an older list to the other processes.
        names, *_ = self._world.gather(sorted(path.name for path in folder.iterdir()))
        own = names[self._world.rank :: self._world.size]
        checksums = {name: torch_shards.file_checksum(folder / name) for name in own}
        return {name: text for each in self._world.gather(checksums) for name, text in each.items()}

    def _check_checksums(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Checks the hashes of all files.

        The processes share the files. If a hash is wrong, all processes raise the same error.
        """
        paths = [folder / name for name in sorted(record["files"])]
        own = paths[self._world.rank :: self._world.size]
        damaged = [path for path in own if not torch_shards.has_checksum(path, record)]
        for path in itertools.chain(*self._world.gather(damaged)):
            raise torch_shards.damaged(path)

    def _state(self) -> dict[str, torch.Tensor]:
        weights = {
            f"weights/{name}": parameter.detach()
            for name, parameter in (
                adapter_parameters(self._model) or names_and_parameters(self._model)
            ).items()
        }
        mesh = next(iter(weights.values())).device_mesh
        slots = {
            f"slots/{name}": _as_dtensor(slot, mesh) for name, slot in self._optimizer.slots.items()
        }
        return weights | slots


def _as_dtensor(slot: Slot, mesh: Any) -> DTensor:
    stride = torch.empty(slot.shape, device="meta").stride()
    return DTensor.from_local(
        slot.value,
        mesh,
        [Shard(0) if slot.by_rows else Replicate()],
        run_check=False,
        shape=torch.Size(slot.shape),
        stride=stride,
    )


def _publish(staging: Path, target: Path) -> None:
    """Gives a complete folder its final name; replaces any folder with that name."""
    for path in staging.iterdir():
        publishing.to_disk(str(path))
    publishing.to_disk(str(staging))
    _remove(target)
    staging.rename(target)
    publishing.to_disk(str(target.parent))


def _remove(folder: Path) -> None:
    # If the removal is interrupted, the folder is no checkpoint. The next save removes the rest.
    removed = folder.with_name(f"{_SAVING}{folder.name}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(removed)
        shutil.rmtree(removed)


def export_to_mesh(checkpoint: Path, folder: str, *, dtype: str = "float32") -> str:
    """Writes a model directory of Mesh TensorFlow; returns a line that describes it.

    Args:
      checkpoint: the folder of a checkpoint of this engine.
      folder: the folder to write, new or empty.
      dtype: the type of the weights in the new checkpoint. It must be equal to the gin parameter
        `get_variable_dtype.master_dtype` of the run. If the type has fewer bits than float32, the
        missing bits of each weight are written to the resume file.

    Raises:
      UserError: if the checkpoint is damaged, or the folder cannot be written.
    """
    target = Path(folder)
    check_destination(target, 0)
    record = torch_shards.read_record(checkpoint)
    step = record["step"]
    resume = {name: value for name, value in record.items() if name in resume_file.FIELDS}
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}.{publishing.unfinished_tag()}")
    try:
        options = ConversionOptions(dtype=dtype)
        report = convert(checkpoint, staging, to="mtf", options=options)
        resume["own"] = [step]
        resume_file.write(f"{staging}/model.ckpt-{step}", resume, _low_halves(checkpoint, dtype))
        configuration_file = checkpoint.parent / model_directory.CONFIGURATION_FILE
        if configuration_file.is_file():  # the next start compares its configuration with this file
            shutil.copy(configuration_file, staging)
        staging.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return f"exported {checkpoint} to {target}: {len(report.rows):,} tensors for Mesh TensorFlow"


def _low_halves(checkpoint: Path, dtype: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a resume file: the bits of weights that type `dtype` does not have."""
    if dtype == "float32":
        return {}
    arrays: dict[str, np.ndarray] = {}
    with contextlib.closing(torch_shards.TorchSource(checkpoint, keep_slots=False)) as source:
        for name in source.parameters:
            native = names.to_mtf(name, legacy_norms=source.facts.legacy_norms)
            arrays |= resume_file.low_halves(f"{native}/0", source.load(name))
    return arrays


def export_to_hugging_face(checkpoint: Path, folder: str) -> str:
    """Writes a Hugging Face folder with the tokenizer's files; returns a line that describes it.

    Args:
      checkpoint: the folder of a checkpoint of this engine.
      folder: the folder to write, new or empty.

    Raises:
      UserError: if the checkpoint is damaged, or the folder cannot be written.
    """
    report = convert(checkpoint, folder, to="hf")
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    return f"exported {checkpoint} to {folder}: {len(report.rows):,} tensors for Hugging Face"


def find_checkpoints(model_dir: str, checkpoint: str | None, steps: Any) -> dict[int, str]:
    """Returns step -> path, for the checkpoints to evaluate, which may have any format.

    Args:
      model_dir: the folder with checkpoints of either engine.
      checkpoint: a checkpoint to use instead of those in `model_dir`, or None.
      steps: a step, a list of steps, "all", or None for the latest step.

    Raises:
      UserError: if there is no such checkpoint.
    """
    if checkpoint:
        with contextlib.closing(open_source(checkpoint, keep_slots=False)) as source:
            return {source.facts.step or 0: checkpoint}
    own_steps = set(torch_shards.steps(Path(model_dir)))
    return {
        step: str(folder_of(model_dir, step))
        if step in own_steps
        else checkpoint_files.checkpoint_path(model_dir, step)
        for step in checkpoint_files.select_steps(model_dir, steps, also=own_steps)
    }


def fingerprint(path: str) -> str:
    """Returns a hash that changes if the values of a checkpoint change."""
    return conversion.fingerprint(*conversion.recognise(path), "")


def warm_start(
    model: T5,
    optimizer: Optimizer,
    path: str,
    world: World,
    *,
    unfilled: Sequence[str] = (),
    seed: int = 0,
) -> tuple[int, list[str]]:
    """Fills the weights from an initial checkpoint, in which some variables may be missing.

    Args:
      optimizer: the optimizer of the model.
      path: a checkpoint in any format. Variables may be missing only in Mesh TensorFlow's format.
      world: the processes of the run.
      unfilled: regular expressions for the names (in Mesh TensorFlow) of variables that may be
        missing. Missing variables get random values.
      seed: the seed of these random values.

    Returns:
      (checkpoint's step, lines about the filled weights). One of the lines names the variables with
      random values.

    Raises:
      UserError: if there is no such checkpoint, if a variable that `unfilled` does not match is
        missing, or if a variable has another shape.
    """
    kind, prefix = conversion.recognise(path) if unfilled else ("", "")
    if kind != "mtf":
        return load(model, optimizer, path, world)
    fill_at_random(model, seed, world)
    parameters = names_and_parameters(model)
    legacy = model.spec.legacy_norms
    with contextlib.closing(BundleReader(prefix)) as reader:
        native_names = {names.from_mtf(native): native for native in reader.entries}
        missing = [
            names.to_mtf(name, legacy_norms=legacy)
            for name in parameters
            if name not in native_names
        ]
        uncovered = [name for name in missing if not any(re.search(x, name) for x in unfilled)]
        if uncovered:
            raise UserError(
                f"the initial checkpoint {path} leaves {len(uncovered)} of the model's "
                f"{len(parameters)} variables unfilled, such as {uncovered[0]}; to leave them "
                "random, name them in train_loop.unfilled_variables"
            )
        shapes = expected_shapes(model.spec.sizes)
        for name in parameters.keys() & native_names.keys():
            native = native_names[name]
            shape = combined(name, shape_of(reader.entries[native]))
            if tuple(shape) != tuple(shapes[name]):
                raise UserError(
                    f"checkpoint {path} holds {native} as {list(shape)}, the configured model "
                    f"wants {list(shapes[name])}: the gin files describe another model"
                )
            _fill_rows(parameters[name], reader.load(native).reshape(shape), name, world)
        step = int(reader.load(STEP).item()) if STEP in reader.entries else 0
    count = len(parameters)
    lines = [recorder.restored_line(count - len(missing), count, path, step)]
    lines += [f"left random: {', '.join(missing)}"] if missing else []
    lines.append(recorder.slots_line(_load_slots(optimizer, prefix, world), len(optimizer.slots)))
    return step, lines


def load(
    model: T5,
    optimizer: Optimizer | None,
    path: str,
    world: World,
    *,
    exact: Mapping[str, np.ndarray] | None = None,
    hashes: dict[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Fills the weights, and the optimizer's slots if the checkpoint has them.

    Args:
      optimizer: the optimizer of the model; None to read only the weights.
      path: a checkpoint in any format.
      world: the processes of the run.
      exact: the arrays of the checkpoint's resume file. If the checkpoint stores weights in
        bfloat16, these arrays contain the missing bits. None if there are no such arrays.
      hashes: a mapping to fill: canonical name -> shape and hash of the tensor.

    Returns:
      (checkpoint's step, lines about the restored weights and slots).

    Raises:
      UserError: if there is no such checkpoint, or it belongs to another model.
    """
    with contextlib.closing(open_source(path, keep_slots=False)) as source:
        _check_sizes(model, source)
        parameters, expected = names_and_parameters(model), expected_shapes(model.spec.sizes)
        for name in expected:
            array = np.asarray(source.load(name), np.float32)
            if exact:
                entry = source.entries[name]
                wide = resume_file.wide_weight(exact, entry.native, array)
                if wide is None and entry.dtype != FLOAT32:
                    raise ValueError(f"it has no low halves of {entry.native}, {entry.dtype}")
                array = array if wide is None else wide
            if hashes is not None:
                hashes[name] = adapter_folders.describe_tensor(array)
            if name in parameters:
                _fill_rows(parameters[name], array, name, world)
            else:
                layer = model.get_submodule(names.hf_name(name).removesuffix(".weight"))
                layer.fill(torch.from_numpy(_to_torch(array, name)))
        step, prefix = source.facts.step or 0, source.path
        slots = _load_slots(optimizer, prefix, world) if optimizer and source.kind == "mtf" else 0
    lines = [recorder.restored_line(len(expected), len(expected), path, step)]
    if optimizer:
        lines.append(recorder.slots_line(slots, len(optimizer.slots)))
    return step, lines


def _fill_rows(parameter: torch.Tensor, array: np.ndarray, name: str, world: World) -> None:
    """Copies this process's rows of a canonical array into a weight."""
    rows = _to_torch(array, name)[own_rows(parameter.shape[0], world)]
    local_rows(parameter).copy_(torch.from_numpy(rows))


def _check_sizes(model: T5, source: CheckpointSource) -> None:
    expected, actual = model.spec.sizes, source.model
    differing = [
        f"{field} {getattr(actual, field)}, not {getattr(expected, field)}"
        for field in vars(expected)
        if getattr(actual, field) != getattr(expected, field)
    ]
    if differing:
        raise UserError(
            f"checkpoint {source.path} is of another model than the run configures: it has "
            f"{', '.join(differing)}"
        )


def _load_slots(optimizer: Optimizer, prefix: str, world: World) -> int:
    """Fills the slots that a Mesh TensorFlow checkpoint contains; returns their number."""
    with contextlib.closing(BundleReader(prefix)) as reader:
        stored_names = optimizer.slots.keys() & reader.entries.keys()
        for name in stored_names:
            slot = optimizer.slots[name]
            array = _to_torch(reader.load(name), slot.weight)
            if array.shape != slot.shape:
                raise UserError(
                    f"checkpoint {prefix} holds {name} with the shape {list(array.shape)}, not "
                    f"{list(slot.shape)}: it is of another optimizer"
                )
            rows = array[own_rows(slot.shape[0], world)] if slot.by_rows else array
            slot.value.copy_(torch.from_numpy(rows))
    return len(stored_names)


def fill_at_random(model: T5, seed: int, world: World) -> None:
    """Fills the weights at random, from the distributions of Mesh TensorFlow's initializers.

    The values depend only on the seed, and not on the number of processes.
    """
    for name, parameter in names_and_parameters(model).items():
        value = _draw_initial(name, tuple(parameter.shape), model, _generator(name, seed))
        local_rows(parameter).copy_(value[own_rows(parameter.shape[0], world)])


def fill_adapter(model: T5, seed: int, world: World) -> None:
    """Fills a model's adapter with values that do not change the model's outputs, as in PEFT.

    The factors of (IA)3 are 1. LoRA's second matrix is 0, and its first matrix is random.
    """
    for name, parameter in adapter_parameters(model).items():
        value = torch.full(tuple(parameter.shape), 0.0 if ".lora_" in name else 1.0)
        if ".lora_A." in name:
            bound = parameter.shape[1] ** -0.5
            value.uniform_(-bound, bound, generator=_generator(name, seed))
        local_rows(parameter).copy_(value[own_rows(parameter.shape[0], world)])


def _generator(name: str, seed: int) -> torch.Generator:
    """Returns the random number generator of a weight's initial values."""
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)


def _draw_initial(
    name: str, shape: tuple[int, ...], model: T5, generator: torch.Generator
) -> torch.Tensor:
    """Returns a tensor's initial values, in PyTorch's orientation."""
    row, sizes = names.row_of(name), model.spec.sizes
    if row.dims == "D":
        return torch.ones(shape)
    value = torch.empty(shape)
    if row.dims == "HB":  # TensorFlow's default initializer (Glorot and Bengio 2010)
        limit = (6 / sum(shape)) ** 0.5
        return value.uniform_(-limit, limit, generator=generator)
    deviation = {"VD": 1.0, "FD": sizes.d_ff**-0.5, "ID": sizes.inner**-0.5}.get(
        row.dims, sizes.d_model**-0.5
    )
    if name.endswith("/q"):
        deviation *= sizes.d_kv**-0.5  # because T5 does not divide attention logits by sqrt(d_kv)
    if row.dims in _TRUNCATED:
        bound = 2 * deviation
        return torch.nn.init.trunc_normal_(
            value, 0.0, deviation, -bound, bound, generator=generator
        )
    return value.normal_(0.0, deviation, generator=generator)


def _to_torch(array: np.ndarray, name: str) -> np.ndarray:
    """Returns a canonical array as float32 in PyTorch's orientation."""
    wide = np.asarray(array, np.float32)
    transposed = wide.ndim == 2 and names.row_of(names.from_mtf(name)).transposed
    return np.ascontiguousarray(wide.T if transposed else wide)
