"""Downloads models from the Hugging Face hub into local folders.

    is_hub_name("google/t5-base-lm-adapt")             # True, unless a local folder has this name
    fetch("bigscience/T0_3B@main")
    # ("/root/.cache/huggingface/.../snapshots/8f3a...", "bigscience/T0_3B@8f3a...")

The library `huggingface_hub` downloads each file once, into its own cache. Safetensors are
preferred to PyTorch's pickles. If there is no network, or if HF_HUB_OFFLINE is set, earlier
downloads are used.
"""

import os
import re
from pathlib import Path

from t0.checkpoints import hugging_face
from t0.errors import UserError, describe_remote

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w(@[\w./-]+)?")
_COMPANIONS = (
    *("*config.json", "spiece.model", "tokenizer*.json", "special_tokens_map.json"),
    "added_tokens.json",
    # The tokenizer files of models that are not T5s.
    *("tokenizer.model", "vocab.json", "merges.txt", "sentencepiece.bpe.model"),
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SECONDS = 10.0


def is_hub_name(text: str) -> bool:
    """Returns whether a text is owner/name or owner/name@revision, and not a local path."""
    exists = Path(text).exists() or Path(f"{text}.index").exists()
    return bool(_NAME.fullmatch(text)) and not exists


def fetch(name: str) -> tuple[str, str]:
    """Downloads a model, and returns its folder and its name with the revision's hash.

    Args:
      name: owner/name, or owner/name@revision.

    Raises:
      UserError: if the model is neither on the hub nor among earlier downloads, or has no weights
        in a supported format.
    """
    from huggingface_hub import HfApi, snapshot_download

    repo, _, revision = name.partition("@")
    try:
        if _is_offline():
            raise ConnectionError("HF_HUB_OFFLINE is set")
        model = HfApi().model_info(repo, revision=revision or None, timeout=_SECONDS)
        files = [sibling.rfilename for sibling in model.siblings or ()]
        patterns = _choose_files(files, name)
        folder = snapshot_download(repo, revision=model.sha, allow_patterns=patterns)
    except _faults() as error:
        folder = _find_downloaded(repo, revision, error)
    if not hugging_face.is_folder(Path(folder)):
        raise UserError(f"{name}: {folder} has no config.json or weights; is it a T5?")
    return folder, f"{repo}@{Path(folder).name}"


def _choose_files(files: list[str], name: str) -> list[str]:
    """Returns the patterns of the files to download, which include only one kind of weights."""
    top_level = [file for file in files if "/" not in file]
    for pattern in _WEIGHTS:
        if any(Path(file).match(pattern) for file in top_level):
            kind = Path(pattern).suffix
            return [*_COMPANIONS, pattern, f"*{kind}.index.json"]
    raise UserError(
        f"{name} has neither safetensors nor pytorch_model.bin; its files: "
        f"{', '.join(top_level[:8]) or 'none'}"
    )


def _find_downloaded(repo: str, revision: str, error: Exception) -> str:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(repo, revision=revision or None, local_files_only=True)
    except _faults():
        owner, _, short = repo.partition("/")
        at = f" --revision {revision}" if revision else ""
        raise UserError(
            f"{repo} is not a folder here, and on the hub it is {describe_remote(error)}. On a "
            f"machine with a network, run: hf download {repo}{at} --local-dir {short} (as {owner} "
            f"publishes it: config.json, the weights and spiece.model). Copy the folder {short} "
            f"here, and use its path"
        ) from None


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def _faults() -> tuple[type[Exception], ...]:
    import httpx
    from huggingface_hub import errors

    return (OSError, ValueError, httpx.HTTPError, errors.HfHubHTTPError)
