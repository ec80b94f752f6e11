"""What a command left, as plain data that is equal where the command did the same.

    snapshot.lines(text, places)       # output: paths, times and speeds as words
    snapshot.files(folder, places)     # {"metrics.jsonl": [lines], "vocab.model": "sha256 9f86..."}

Small text files are kept as lines, for a difference to be read; other files as a checksum, arrays
each with one of their own. Event files hold times and are left out.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

LONGEST_TEXT = 400_000
_LEFT_OUT = re.compile(r"(^|/)(events\.out\.tfevents|__pycache__/)|\.lock$")
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_PROGRESS = re.compile(r", ETA (CLOCK|\?|DURATION|\S+$)|^caching: .* examples, memory ")
# In order: what names a moment, a duration or a speed, here or elsewhere.
_TIMES = (
    (r"/tmp/t0_equality_\w{8}", "$WORK"),
    (r"[^\s'\"=]*/site-packages/", "$PACKAGES/"),  # of any environment
    (r"(hf|t5x|mtf)-[0-9a-f]{16}\b", r"\1-PLACE"),  # of a converted copy: of the path it is from
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?", "MOMENT"),
    (r"\b\d{4}-\d\d-\d\d\b", "DAY"),
    (r'("pid": )\d+', r"\1PROCESS"),
    (r"\b[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "LOGGED "),
    (r'("\w*(?:second|hours|_time|time_|date|mtime)\w*": )[^,}\n]+', r"\1TIME"),
    (rf"\b{_NUMBER}k? ?(?=(?:[A-Za-z]+/s\b|[a-z]+ (?:a|per) second))", "SPEED "),
    (rf"\b{_NUMBER} (?:ms|s|min|h|seconds?|minutes?|hours?)\b(?! of)", "DURATION"),
    (r"\b\d+m\d\ds(?= left)", "DURATION"),
    (r"\b\d+:\d\d(:\d\d)?\b", "CLOCK"),
    (r"\b1[67]\d{8}(\.\d+)?\b", "EPOCH"),
    (r"\b[\d.]+ GB(?= free)|(?<=memory )[\d.]+ GB", "SIZE"),
    (r" at 0x[0-9a-f]+", " at ADDRESS"),
    (r"\btmp[a-z0-9_]{8}\b", "TEMPORARY"),
)


def plain(text: str, places: Mapping[str, str]) -> str:
    """Returns text with the machine's places and times as words."""
    for path, word in places.items():
        text = text.replace(path, word)
    for pattern, word in _TIMES:
        text = re.sub(pattern, word, text)
    return text


def lines(text: str, places: Mapping[str, str]) -> list[str]:
    """Returns the plain lines but for those of progress, which come when time has passed.

    Of a line that was written over (carriage return) the last state is kept.
    """
    found = (line.rsplit("\r", 1)[-1] for line in plain(text, places).split("\n"))
    return [line for line in found if not _PROGRESS.search(line)]


def again(kept: object) -> object:
    """Returns what was kept as today's rules would have kept it."""
    if isinstance(kept, dict):
        return {name: again(value) for name, value in kept.items()}
    if isinstance(kept, list):
        return [again(value) for value in kept if not _PROGRESS.search(str(value))]
    return plain(kept, {}) if isinstance(kept, str) else kept


def files(folder: Path, places: Mapping[str, str], *, but: Mapping[str, str] | None = None) -> dict:
    """Returns the content of each file below a folder, by relative name.

    Args:
      folder: to look at; it may not exist.
      places: path -> word.
      but: digests of files to leave out if they are unchanged, see `digests`.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        # A name may hold a time, as an exported model's folder does.
        name = plain(path.relative_to(folder).as_posix(), places)
        if not path.is_file() or _LEFT_OUT.search(name):
            continue
        if but and but.get(path.relative_to(folder).as_posix()) == _digest(path.read_bytes()):
            continue
        found[name] = _content(path, places)
    return found


def digests(folder: Path) -> dict[str, str]:
    """Returns the checksum of each file below a folder."""
    return {
        path.relative_to(folder).as_posix(): _digest(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def _digest(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()}"


def _content(path: Path, places: Mapping[str, str]) -> list[str] | dict | str:
    data = path.read_bytes()
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: _array(arrays[name], places) for name in sorted(arrays)}
    if path.name == "saved_model.pb":
        return saved_model(data)
    try:
        text = data.decode("utf-8") if len(data) <= LONGEST_TEXT else "\0"
    except UnicodeDecodeError:
        text = "\0"
    return _digest(data) if "\0" in text else lines(text, places)


def _array(values: np.ndarray, places: Mapping[str, str]) -> str | list[str]:
    if values.dtype.kind in "US" and values.size == 1:
        return lines(str(values.item()), places)
    if values.size <= 4 and values.dtype.kind in "biuf":
        return f"{values.dtype} {values.tolist()}"
    return f"{values.dtype} {list(values.shape)} {_digest(np.ascontiguousarray(values).tobytes())}"


def saved_model(data: bytes) -> dict:
    """Returns an exported model's signatures and the counts of its operations.

    The names of functions in it hold numbers that count what the process did before.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel.FromString(data)
    counts: dict[str, int] = {}
    signatures = {}
    for graph in model.meta_graphs:
        functions = [node for f in graph.graph_def.library.function for node in f.node_def]
        for node in [*graph.graph_def.node, *functions]:
            counts[node.op] = counts.get(node.op, 0) + 1
        for name, signature in graph.signature_def.items():
            tensors = {**signature.inputs, **{f"-> {k}": v for k, v in signature.outputs.items()}}
            signatures[name] = {
                k: f"{v.dtype} {[d.size for d in v.tensor_shape.dim]}" for k, v in tensors.items()
            }
    return json.loads(json.dumps({"operations": counts, "signatures": signatures}, sort_keys=True))
