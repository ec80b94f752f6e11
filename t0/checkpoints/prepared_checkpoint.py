"""Prepares a checkpoint of any format for a run, with its gin file and its vocabulary.

    path, source = locate("/models/t0_3b")
    checkpoint = find(path, source, Path("out"))    # nothing is written
    checkpoint.vocabulary   # "/models/t0_3b/spiece.model"
    ready = checkpoint.prepare()
    ready.checkpoint        # "out/converted/t0_3b-5f3c.../model.ckpt-0"
    ready.gin_file          # "out/converted/t0_3b-5f3c.../operative_config.gin"
    checkpoint.describe()   # ("out/model.gin", "/models/t0_3b/spiece.model"): nothing is converted

A checkpoint may also be a model on the Hugging Face hub (`bigscience/T0_3B@main`). The library
`huggingface_hub` downloads each file once, into its own cache. Safetensors are preferred to
PyTorch's pickles. If there is no network, or if HF_HUB_OFFLINE is set, earlier downloads are used.

The shape of a T5 encoder-decoder is inferred from its tensors. A Mesh TensorFlow checkpoint of any
other model needs its operative config in the same folder. Its bindings are copied without its
imports, because anybody may have written the file.
"""

import contextlib
import dataclasses
import os
import re
import sys
from pathlib import Path

from t0.checkpoints import conversion, operative_config, other_folders, tokenizer
from t0.checkpoints.formats import BFLOAT16, CheckpointSource
from t0.errors import UserError, describe_remote
from t0.files import publishing
from t0.files.any_path import any_path

MODEL_FILE = "model.gin"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w(@[\w./-]+)?")
_COMPANIONS = (
    *("*config.json", "spiece.model", "tokenizer*.json", "special_tokens_map.json"),
    "added_tokens.json",
    # The tokenizer files of models that are not T5s.
    *("tokenizer.model", "vocab.json", "merges.txt", "sentencepiece.bpe.model"),
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Described:
    """A checkpoint that is ready for a run.

    Attributes:
      source: the origin of the checkpoint, which is written into the results: its path, or its hub
        name with the revision.
      checkpoint: the prefix of a Mesh TensorFlow checkpoint.
      gin_file: the absolute path of the gin file of the checkpoint's model.
    """

    source: str
    checkpoint: str
    gin_file: str


def locate(path: str) -> tuple[str, str]:
    """Returns a checkpoint's path and its origin. If `path` is a hub name, downloads the model.

    Raises:
      UserError: if the checkpoint does not exist.
    """
    if is_hub_name(path):
        print(f"{path} is not a path here: looking for it on the Hugging Face hub", file=sys.stderr)
        folder, source = fetch(path)
        other_folders.check(any_path(folder))
        return folder, source
    other_folders.check(any_path(path))
    return path, str(Path(path).absolute()) if "://" not in path else path


@dataclasses.dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that was found, and has not been prepared yet.

    Attributes:
      path: a checkpoint in any format.
      source: the checkpoint's origin, as `locate` returns it.
      output: the folder for the gin file and for a converted checkpoint.
      vocabulary: the path of the checkpoint's SentencePiece model, which may only exist after
        `prepare`, or None.
    """

    path: str
    source: str
    output: Path
    vocabulary: str | None

    def prepare(self) -> Described:
        """Converts the checkpoint if necessary, and finds or writes its gin file.

        Raises:
          UserError: if the checkpoint cannot be read, or `output` cannot be written.
        """
        kind, prefix_or_folder = conversion.recognise(self.path)
        if kind == "mtf":
            gin_file = _gin_file(self.path, prefix_or_folder, self.output)
            return Described(self.source, prefix_or_folder, str(gin_file.absolute()))
        prefix = conversion.as_mesh_checkpoint(self.path, self.output / "converted", slots=False)
        config = os.path.join(os.path.dirname(prefix), operative_config.FILE)  # noqa: PTH118,PTH120
        return Described(self.source, prefix, str(Path(config).absolute()))

    def describe(self) -> tuple[str, str | None]:
        """Writes the gin file of the model without converting the checkpoint, as for training.

        Returns:
          the path of the gin file in `output`, and the path of the SentencePiece model, which may
          be converted from `tokenizer.json`; None if the checkpoint has none.

        Raises:
          UserError: if the checkpoint cannot be read, or `output` cannot be written.
        """
        kind, prefix_or_folder = conversion.recognise(self.path)
        if kind == "mtf":
            return str(_gin_file(self.path, prefix_or_folder, self.output)), self.vocabulary
        with contextlib.closing(conversion.open_source(self.path, keep_slots=False)) as opened:
            gin_file = _write(opened, self.output / MODEL_FILE)
            pieces = opened.facts.tokenizer
        if pieces is None or pieces.suffix != ".json":
            return str(gin_file), self.vocabulary
        path = self.output / tokenizer.FILE
        publishing.write_whole(str(path), tokenizer.model_bytes(pieces))
        return str(gin_file), str(path)


def find(path: str, source: str, output: Path, *, vocabulary: str | None = None) -> FoundCheckpoint:
    """Reads a checkpoint's facts; nothing is written.

    Args:
      path: a checkpoint in any format.
      source: the checkpoint's origin, as `locate` returns it.
      output: the folder for the gin file and for a converted checkpoint.
      vocabulary: the SentencePiece model to use instead of the checkpoint's.

    Raises:
      UserError: if there is no checkpoint, if it is not a T5, or if `vocabulary` is None but the
        checkpoint's tokenizer cannot be read.
    """
    kind, prefix_or_folder = conversion.recognise(path)
    try:
        with contextlib.closing(conversion.open_source(path, keep_slots=False)) as opened:
            facts = opened.facts
    except UserError:
        if kind != "mtf" or not _own_config(prefix_or_folder).is_file():
            raise
        return FoundCheckpoint(path, source, output, None)  # its gin file describes another model
    pieces = facts.tokenizer
    if kind != "mtf":
        if line := tokenizer.difference(facts, vocabulary):
            print(f"note: {line}", file=sys.stderr)
        elif facts.tokenizer_fault and not vocabulary:
            raise UserError(facts.tokenizer_fault)
        if pieces and pieces.suffix == ".json":  # the converted folder has a spiece.model
            converted = output / "converted"
            pieces = conversion.folder_of_converted(path, converted, slots=False) / tokenizer.FILE
    return FoundCheckpoint(path, source, output, pieces and str(pieces))


def _own_config(prefix: str) -> Path:
    return Path(prefix).parent / operative_config.FILE


def _gin_file(path: str, prefix: str, output: Path) -> Path:
    """Writes the gin file of a Mesh TensorFlow checkpoint, and returns its path."""
    gin_file, config = output / MODEL_FILE, _own_config(prefix)
    try:
        with contextlib.closing(conversion.open_source(path, keep_slots=False)) as opened:
            return _write(opened, gin_file)
    except UserError as error:
        if not config.is_file():
            raise
        print(f"note: {error}; its model is read from {config}", file=sys.stderr)
    with publishing.writing(str(gin_file)):
        output.mkdir(parents=True, exist_ok=True)
        gin_file.write_text(operative_config.plain_bindings(str(config)), encoding="utf-8")
    return gin_file


def _write(source: CheckpointSource, path: Path) -> Path:
    facts = source.facts
    activation = facts.activation
    if activation is None:
        activation = source.model.usual_activation
        print(
            f"note: {source.path} has no operative_config.gin that names its feed-forward "
            f"activation: using {activation}, as in T5",
            file=sys.stderr,
        )
    dtypes = {entry.dtype for entry in source.parameters.values()}
    with publishing.writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        operative_config.write_operative(
            path,
            source.model,
            activation=activation,
            dropout_rate=None,
            master_dtype="bfloat16" if dtypes == {BFLOAT16} else "float32",
            legacy_norms=facts.legacy_norms,
            source=f"the tensors of {Path(source.path).name!r}",
        )
    return path


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
        model = HfApi().model_info(repo, revision=revision or None, timeout=_SECONDS)
        files = [sibling.rfilename for sibling in model.siblings or ()]
        patterns = _choose_files(files, name)
        folder = snapshot_download(repo, revision=model.sha, allow_patterns=patterns)
    except _faults() as error:
        folder = _find_downloaded(repo, revision, error)
    return folder, f"{repo}@{Path(folder).name}"


def _choose_files(files: list[str], name: str) -> list[str]:
    """Returns the patterns of the files to download, which include only one kind of weights."""
    top_level = [file for file in files if "/" not in file]
    for pattern in _WEIGHTS:
        if any(Path(file).match(pattern) for file in top_level):
            kind = Path(pattern).suffix
            return [*_COMPANIONS, pattern, f"*{kind}.index.json"]
    raise UserError(f"{name} has neither safetensors nor pytorch_model.bin")


def _find_downloaded(repo: str, revision: str, error: Exception) -> str:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(repo, revision=revision or None, local_files_only=True)
    except _faults():
        short = repo.rpartition("/")[2]
        at = f" --revision {revision}" if revision else ""
        raise UserError(
            f"{repo} is not a folder here, and on the hub it is {describe_remote(error)}. On a "
            f"machine with a network, run: hf download {repo}{at} --local-dir {short}. Copy the "
            f"folder {short} here, and use its path"
        ) from None


def _faults() -> tuple[type[Exception], ...]:
    import httpx
    from huggingface_hub import errors

    return (OSError, ValueError, httpx.HTTPError, errors.HfHubHTTPError)
