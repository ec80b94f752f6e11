"""Reads and writes Mesh TensorFlow's checkpoints, whose tensor names are the canonical ones.

    source = MtfSource(find_prefix(Path("/models/tiny"), step=1000))
    target = MtfTarget(folder, plan)             # model.ckpt-STEP.*, operative_config.gin

Mesh TensorFlow may stack variables of equal shape in its graph. In its files, every variable has
its own entry.
"""

import re
from pathlib import Path

import numpy as np

from t0.checkpoints import names, operative_config, tokenizer
from t0.checkpoints.bundle import BundleReader, BundleWriter, shape_of
from t0.checkpoints.checkpoint_files import STEP, latest_step, prefixes
from t0.checkpoints.formats import (
    BFLOAT16,
    CheckpointFacts,
    CheckpointSource,
    CheckpointTarget,
    TargetPlan,
    TensorEntry,
    checked_step,
)
from t0.checkpoints.shape import combined
from t0.errors import UserError
from t0.files.any_path import any_path

_SLOT = re.compile(r"(_slot_\w+|/adam_[mv])$")


def find_prefix(path: Path, step: int | None) -> str | None:
    """Returns the prefix of the checkpoint at or in `path`; None if there is no checkpoint.

    Args:
      path: a model directory, a prefix, or one of its files.
      step: the step of the checkpoint in a directory; by default the latest, see `latest_step`.

    Raises:
      UserError: if the directory has no checkpoint of that step.
    """
    if path.is_dir():
        checkpoints = prefixes(path)
        if not checkpoints:
            return None
        if step is not None and step not in checkpoints:
            steps = ", ".join(map(str, checkpoints))
            raise UserError(f"{path} has no checkpoint of step {step}; it has {steps}")
        return checkpoints[latest_step(path) if step is None else step]
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", str(path))
    if any_path(f"{prefix}.index").is_file():
        return prefix
    if list(path.parent.glob(f"{Path(prefix).name}.data-*")):
        raise UserError(f"checkpoint {prefix}: its index, {prefix}.index, is missing")
    return None


class MtfSource(CheckpointSource):
    """A Mesh TensorFlow checkpoint.

    Args:
      prefix: the checkpoint's path without `.index`.
      keep_slots: whether to read the optimizer's variables.
    """

    kind = "mtf"

    def __init__(self, prefix: str | Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(prefix))
        self._reader = BundleReader(prefix)
        unknown = []
        # In file order, so that files are read sequentially.
        stored = sorted(
            self._reader.entries.items(), key=lambda item: (item[1].shard_id, item[1].offset)
        )
        for native, entry in stored:
            name = names.from_mtf(native)
            if native == STEP:
                continue
            if not keep_slots and _SLOT.search(native):
                self.unused.append((native, "optimizer slots are not read"))
            elif name is None:
                unknown.append(native)
            else:
                shape = combined(name, shape_of(entry))
                self.entries[name] = TensorEntry(shape, self._reader.dtype(native), native)
        self.check(unknown)
        self.facts = self._read_facts()

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name."""
        entry = self.entries[name]
        return self._reader.load(entry.native).reshape(entry.shape)

    def close(self) -> None:
        """Closes the data files."""
        self._reader.close()

    def _read_facts(self) -> CheckpointFacts:
        folder = any_path(self.path).parent
        pieces = folder / tokenizer.FILE
        step = None
        if STEP in self._reader.entries:
            array = self._reader.load(STEP)
            step = checked_step(array.item() if array.size == 1 else array.shape, self.path)
        return CheckpointFacts(
            step=step,
            legacy_norms=any("layer_norm/" in entry.native for entry in self.entries.values()),
            tokenizer=pieces if pieces.is_file() else None,
            **operative_config.facts_of(folder, self.model),
        )


class MtfTarget(CheckpointTarget):
    """Writes a Mesh TensorFlow model directory."""

    title, last = "Mesh TensorFlow", "*.index"

    @staticmethod
    def adapt_plan(plan: TargetPlan) -> TargetPlan:
        """Checks that the number of embeddings is a multiple of 128, and returns the plan."""
        rows = plan.model.vocabulary
        if rows % 128:
            padded = -(-rows // 128) * 128
            raise UserError(
                f"the embedding has {rows:,} rows; Mesh TensorFlow's are a multiple of 128. Say "
                f"--vocabulary_rows {padded} to add {padded - rows} copies of the padding row"
            )
        return plan

    def __init__(self, folder: Path, plan: TargetPlan) -> None:
        super().__init__(folder, plan)
        self._name = f"model.ckpt-{plan.facts.step}"
        self._writer = BundleWriter(folder / self._name)

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name."""
        self._writer.add(names.to_mtf(name, legacy_norms=self.plan.facts.legacy_norms), array)

    def finish(self) -> None:
        """Writes the step, the model's gin file, the index and TensorFlow's state file."""
        facts, plan = self.plan.facts, self.plan
        self._writer.add(STEP, np.asarray(facts.step, np.int64))
        master = next(entry.dtype for entry in plan.entries.values())
        operative_config.write_operative(
            self.folder / operative_config.FILE,
            plan.model,
            activation=facts.activation,
            dropout_rate=facts.dropout_rate,
            master_dtype="bfloat16" if master == BFLOAT16 else "float32",
            legacy_norms=facts.legacy_norms,
            source=plan.source,
        )
        if facts.tokenizer:
            (self.folder / tokenizer.FILE).write_bytes(tokenizer.model_bytes(facts.tokenizer))
        self._writer.finish()
        state = (
            f'model_checkpoint_path: "{self._name}"\nall_model_checkpoint_paths: "{self._name}"\n'
        )
        (self.folder / "checkpoint").write_text(state, encoding="utf-8")

    def close(self) -> None:
        """Closes the current data file."""
        self._writer.close()
