"""Detects folders that are not a T5's checkpoint, or only look like one, by their small files.

    check(Path("/models/t5_with_lora"))        # raises: an adapter lies next to the model
    hint(Path("/runs/trainer_output"))
    # ". Its subfolders with a checkpoint: ..."
    needs_transformers("/models/gpt2")         # True: `t0.torch.transformers_model` reads it

Folders that only look like checkpoints are outputs of a Trainer, and folders of the hub's cache.
"""

import importlib.util
from pathlib import Path

from t0.checkpoints.shape import listed
from t0.errors import UserError, install_command
from t0.files.paths import is_remote
from t0.files.untrusted import read_json

T5_TYPES = ("t5", "mt5", "umt5")
# The published ways to join an input and an answer choice for a decoder-only model; see
# `t0.torch.transformers_model.JOINS`.
JOINS = ("lm-eval", "t-zero")
ADAPTER = "adapter_config.json"
_WEIGHTS = (
    *("model*.safetensors", "pytorch_model*.bin", "model.ckpt-*.index", "torch.ckpt-*/resume.json"),
    *("checkpoint", "checkpoint_*/checkpoint"),  # T5X
)
# The subfolders in which a Trainer, the hub's cache or a folder of models keeps checkpoints.
_SUBFOLDERS = ("*", "snapshots/*", "*/snapshots/*")
_FSDP = ("*.distcp", "*/*.distcp", "*/*/*.distcp")


def needs_transformers(path: str) -> bool:
    """Returns whether a path is a Hugging Face folder of a model that is not a T5."""
    file = Path(path) / "config.json"
    if "://" in path or not file.is_file():
        return False
    return read_json(file).get("model_type", "t5") not in T5_TYPES


def check_packages(path: str) -> None:
    """Checks, without importing them, that the packages are installed that a path's model needs.

    Raises:
      UserError: the model is not a T5, and PyTorch or transformers is not installed.
    """
    if not needs_transformers(path):
        return
    missing = [each for each in ("torch", "transformers") if not importlib.util.find_spec(each)]
    if missing:
        raise UserError(
            f"{path} is not a T5, so it is evaluated with PyTorch and transformers, but "
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed: "
            f"{install_command('hf')}"
        )


def check(folder: Path) -> None:
    """Checks that no adapter lies next to a model, because `transformers` would add the adapter.

    Raises:
      UserError: if there is such an adapter.
    """
    adapter = (folder / ADAPTER).is_file()
    if not adapter or not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        return
    raise UserError(
        f"{folder / ADAPTER}: the folder has an adapter next to a model. Move {ADAPTER} and "
        "adapter_model.safetensors to another folder. If you want to use the adapter, name it with "
        f"--adapter{hint(folder)}"
    )


def hint(folder: Path) -> str:
    """Returns what to use instead of a folder without a checkpoint, for an error message, or ""."""
    if is_remote(folder) or not folder.is_dir():
        return ""
    usable = sorted(
        {str(path) for pattern in _SUBFOLDERS for path in folder.glob(pattern) if _is_usable(path)}
    )
    if usable:
        return f". Its subfolders with a checkpoint:{listed(usable)}"
    for shards in (file.parent for pattern in _FSDP for file in folder.glob(pattern)):
        merge = f"accelerate merge-weights {shards} NEW"
        return (
            f". {shards} has shards of FSDP: run {merge}, copy config.json into NEW, and name NEW"
        )
    return ""


def _is_usable(path: Path) -> bool:
    """Returns whether a folder has a config and weights, or a checkpoint in another format."""
    if not path.is_dir() or (path / ADAPTER).is_file():
        return False
    files = [file for pattern in _WEIGHTS for file in path.glob(pattern)]
    hugging_face = [file for file in files if file.suffix in (".safetensors", ".bin")]
    return bool(files) and (len(hugging_face) < len(files) or (path / "config.json").is_file())
