"""Writes and reads sharded checkpoints of a run on PyTorch.

    checkpoints = Checkpoints(model_dir, model, optimizer, world, Keep(last=2), "spm.model")
    checkpoints.save(100, {"position": position, ...}, best=80)
    record = checkpoints.restore(latest("/models/tiny"))

The checkpoint of step 100 is the folder `torch.ckpt-100`. It contains a safetensors file from each
process, which `torch.distributed.checkpoint` writes, and `resume.json` with the position in the
data and other state of the run. Any number of processes can read a checkpoint. Each of them reads
only its own rows of each weight. A folder gets its final name only when all of it is on the disk.
No file is pickled.
"""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Replicate, Shard

from t0.checkpoints import names, torch_shards
from t0.checkpoints.shape import expected_shapes, slot_shape
from t0.checkpoints.torch_shards import RECORD
from t0.errors import UserError
from t0.files import publishing
from t0.torch.adapters import adapter_parameters
from t0.torch.model import T5
from t0.torch.optimizers import Optimizer, Slot
from t0.torch.sharding import names_and_parameters
from t0.torch.world import World
from t0.training import model_directory, resume_file
from t0.training.model_directory import Keep, select_retained_steps

_SAVING = ".saving-torch-"


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
      model: the model.
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
        with _saving_error(target, self._model_dir):
            if self._world.first:
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
        record = read_record(path)
        # Without this check, if a file is missing, its rows would silently keep their present
        # values.
        torch_shards.checked_files(path, record["files"])
        self._check_checksums(path, record)
        state = self._state()
        try:
            dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(path)))
        except (CheckpointException, RuntimeError, ValueError, KeyError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UserError(
                f"checkpoint {path} cannot be read ({reason:.200}). Is it of another model or "
                "optimizer, or damaged? To resume from an older one, remove this folder"
            ) from error
        own = record.pop("own")
        self._own = [s for s in steps(self._model_dir) if s in own]
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
    if target.exists():
        shutil.rmtree(target)
    staging.rename(target)
    publishing.to_disk(str(target.parent))


def _remove(folder: Path) -> None:
    # The record is removed first. A folder without a record is not a checkpoint, even if the
    # removal of the other files is interrupted.
    with contextlib.suppress(FileNotFoundError):
        (folder / RECORD).unlink()
        shutil.rmtree(folder)


def read_record(folder: Path) -> dict[str, Any]:
    """Returns the record of a checkpoint.

    Raises:
      UserError: if the record is damaged.
    """
    record = torch_shards.read_record(folder)
    try:
        resume_file.check_record(record)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{folder / RECORD} is damaged ({error!s:.200}); to resume from an older checkpoint, "
            f"remove {folder}"
        ) from error
    return record


@contextlib.contextmanager
def _saving_error(path: Path, model_dir: str) -> Iterator[None]:
    try:
        yield
    except (OSError, CheckpointException) as error:
        causes = [
            each[0] if isinstance(each, tuple) else each
            for each in getattr(error, "failures", {}).values()
        ] or [error]
        reason = (str(causes[0]).strip().splitlines() or [type(causes[0]).__name__])[0]
        complete_steps = steps(model_dir)
        last = (
            f"The last one, {folder_of(model_dir, complete_steps[-1])}, is intact; m"
            if complete_steps
            else "M"
        )
        raise UserError(
            f"checkpoint {path} cannot be saved: {reason}. {last}ake room and start the same "
            "command again"
        ) from error
