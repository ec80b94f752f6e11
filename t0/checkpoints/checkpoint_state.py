r"""The file `checkpoint`, in which TensorFlow's savers name the latest checkpoint.

    latest_path('model_checkpoint_path: "model.ckpt-1000"\n')      # "model.ckpt-1000"

It is a `CheckpointState` in the text form of protocol buffers, which allows more than savers write:
comments, either quote, escapes, texts in pieces, lists, fields in any order. All of that is read,
but for escapes that no writer makes (`\u0041`, and those that C does not have), and nothing else.
"""

import re

# A comment ends with its line, or with the file; so each text is divided in one way only.
_SPACE = r"(?:\s|#[^\n]*(?:\n|\Z))*"
_TEXT = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_NUMBER = r"(?:[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf(?:inity)?)f?|nan)(?![\w.+-])"
_PATH = "model_checkpoint_path"


def _field(name: str, *, many: bool, value: str) -> str:
    """Returns the pattern of a field: its name, and its value, or values in brackets."""
    listed = rf"|\[{_SPACE}(?:{value}(?:,{_SPACE}{value})*)?\]{_SPACE}" if many else ""
    return rf"{name}{_SPACE}:{_SPACE}(?:(?P<{name}>{value}){listed})[,;]?{_SPACE}"


_TEXTS, _ONE_NUMBER = rf"(?:{_TEXT}{_SPACE})+", rf"{_NUMBER}{_SPACE}"
_FIELD = re.compile(
    "|".join(
        (
            _field(_PATH, many=False, value=_TEXTS),
            _field("all_model_checkpoint_paths", many=True, value=_TEXTS),
            _field("all_model_checkpoint_timestamps", many=True, value=_ONE_NUMBER),
            _field("last_preserved_timestamp", many=False, value=_ONE_NUMBER),
        )
    )
)
_PIECE = re.compile(rf"({_TEXT}){_SPACE}")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.?))", re.DOTALL)
_PLAIN = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


def latest_path(content: str) -> str:
    """Returns the latest checkpoint as the file names it: relative to its folder, or absolute.

    Raises:
      ValueError: if the content is not that of such a file, or names no checkpoint.
    """
    found, at = "", re.match(_SPACE, content).end()
    while at < len(content):
        field = _FIELD.match(content, at)
        if field is None:
            raise ValueError(f"not a field of a checkpoint's state: {content[at : at + 40]!r}")
        if field[_PATH] is not None:
            found = b"".join(map(_unescaped, _PIECE.findall(field[_PATH]))).decode("utf-8")
        at = field.end()
    if not found or "\0" in found:
        raise ValueError("it names no checkpoint")
    return found


def _unescaped(quoted: str) -> bytes:
    return _ESCAPE.sub(_meant, quoted[1:-1].encode("utf-8"))


def _meant(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, plain = escape.groups()
    if octal or hexadecimal:
        return bytes([int(octal, 8) if octal else int(hexadecimal, 16)])
    if plain not in _PLAIN:
        raise ValueError(f"an unknown escape: {escape[0]!r}")
    return _PLAIN[plain]
