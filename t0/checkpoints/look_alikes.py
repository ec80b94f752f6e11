"""Detects folders that only look like checkpoints, such as outputs of a Trainer.

    check(Path("/models/t5_with_lora"))        # raises: an adapter lies next to the model
    hint(Path("/runs/trainer_output"))
    # ". Its subfolders with a checkpoint: ..."

It also detects folders of the hub's cache, and folders with shards that another program must merge
first. Files are recognized by their names, so no weights are read.
"""

import contextlib
import re
from pathlib import Path

from t0.errors import UserError
from t0.files.paths import is_remote
from t0.files.untrusted import read_json

ADAPTER = "adapter_config.json"
_WEIGHTS = (
    *("model*.safetensors", "pytorch_model*.bin", "model.ckpt-*.index", "torch.ckpt-*/resume.json"),
    *("checkpoint", "checkpoint_*/checkpoint"),  # T5X
)
# The subfolders in which a Trainer, the hub's cache or a folder of models keeps checkpoints.
_SUBFOLDERS = ("*", "snapshots/*", "*/snapshots/*")
# Patterns of shards that other programs write -> how to turn the shards into a checkpoint.
_SHARDS = {
    ("*.distcp", "*/*.distcp", "*/*/*.distcp"): (
        ". {shards} holds shards of FSDP: merge them with accelerate merge-weights {shards} NEW, "
        "copy config.json and the tokenizer into NEW, and name NEW"
    ),
    ("*_optim_states.pt", "*/*_optim_states.pt", "*/*/*_optim_states.pt"): (
        ". {shards} holds shards of DeepSpeed: merge them with zero_to_fp32.py, which lies next to "
        "that folder, copy config.json and the tokenizer to the result, and name it"
    ),
}


def check(folder: Path) -> None:
    """Checks that no adapter lies next to a model, because `transformers` would add the adapter.

    Raises:
      UserError: if there is such an adapter.
    """
    if not (folder / ADAPTER).is_file() or not _has_weights(folder):
        return
    config = {}
    with contextlib.suppress(UserError):
        config = read_json(folder / ADAPTER)
    kind, base = (f"{config.get(key)!a:.80}" for key in ("peft_type", "base_model_name_or_path"))
    raise UserError(
        f"{folder / ADAPTER}: the folder has an adapter ({kind} of {base}) next to a model. Move "
        f"{ADAPTER} and adapter_model.safetensors to another folder. If you want to use the "
        f"adapter, name it with --adapter{hint(folder)}"
    )


def hint(folder: Path) -> str:
    """Returns advice to append to an error message about a folder without a checkpoint.

    It lists the subfolders that have a checkpoint, or says how to merge other programs' shards.
    """
    if is_remote(folder) or not folder.is_dir():
        return ""
    usable = sorted(
        {path for pattern in _SUBFOLDERS for path in folder.glob(pattern) if _is_usable(path)},
        key=lambda path: [
            (word.isdigit(), int(word) if word.isdigit() else 0, word)
            for word in re.split(r"(\d{1,18})", str(path))
        ],
    )
    if usable:
        shown = [f"\n  {path}" for path in usable[:8]]
        more = f"\n  ... and {len(usable) - 8:,} more" if len(usable) > 8 else ""
        return f". Its subfolders with a checkpoint:{''.join(shown)}{more}"
    for patterns, advice in _SHARDS.items():
        for pattern in patterns:
            for file in folder.glob(pattern):
                return advice.format(shards=file.parent)
    return ""


def _is_usable(path: Path) -> bool:
    """Returns whether a folder has a config and weights, or a checkpoint in another format."""
    if not path.is_dir() or (path / ADAPTER).is_file():
        return False
    files = [file for pattern in _WEIGHTS for file in path.glob(pattern)]
    hugging_face = [file for file in files if file.suffix in (".safetensors", ".bin")]
    return bool(files) and (len(hugging_face) < len(files) or (path / "config.json").is_file())


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in _WEIGHTS)
