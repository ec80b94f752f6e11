"""Hypothesis strategies that damage bytes, files and folders, and that write hostile texts."""

import copy
import shutil
from pathlib import Path

from hypothesis import strategies as st

_NUMBERS = [0, 1, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 2**70, -1]
_TEXTS = [
    b"", b"\0", b"\n", b"null", b"true", b"NaN", b"-Infinity", b"[]", b"{}", b'""', b"1e999",
    b"../../x", b"/etc/passwd", b"[" * 500, b'{"a":' * 300, b"\xff\xfe", b"\xed\xa0\x80", b"'",
    b"<script>", b"=1+1", b"\x1b[31m", b"x" * 300, b"__class__", b"%s%n", b"*a", b"&a ", b"!!int x",
]  # fmt: skip
_WORDS = [str(n).encode() for n in _NUMBERS] + _TEXTS
_WORDS += [n.to_bytes(8, "little", signed=n < 0) for n in _NUMBERS if -(2**63) <= n < 2**63]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with one to four changes: flips, other words, cuts, repetitions, truncation."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        size = draw(st.sampled_from([1, 2, 4, 8, 40, 400]))
        kind = draw(st.sampled_from(["flip", "word", "insert", "cut", "repeat", "end"]))
        if kind == "flip" and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif kind in ("word", "insert"):
            word = draw(st.sampled_from(_WORDS))
            found[at : at + (len(word) if kind == "word" else 0)] = word
        elif kind == "cut":
            del found[at : at + size]
        elif kind == "repeat":
            found[at:at] = found[at : at + size] * draw(st.integers(1, 9))
        elif kind == "end":
            del found[at:]
    return bytes(found)


@st.composite
def damaged_folder(draw: st.DrawFn, folder: Path, into: Path) -> Path:
    """A copy of a folder with one or two of its files damaged, lost, exchanged or unreadable."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for _ in range(draw(st.integers(1, 2))):
        path = into / draw(st.sampled_from(files))
        kind = draw(st.sampled_from(["damage", "damage", "damage", "lose", "other", "folder"]))
        if kind == "damage":
            whole = (folder / path.relative_to(into)).read_bytes()
            if path.is_dir():
                path.rmdir()
            path.write_bytes(draw(damaged(whole)))
        elif kind == "other" and path.is_file():
            path.write_bytes((folder / draw(st.sampled_from(files))).read_bytes())
        elif path.is_file():
            path.unlink()
            if kind == "folder":
                path.mkdir()
    return into


_VALUES = [
    None, True, False, 0, 1, -1, 7, 1.5, -0.5, 0.0, 1e-300, 1e308, -1e308, float("nan"),
    float("inf"), 2**31, 2**53, 2**63, 2**70, 10**400, "", "x", "(", "\ud800", "../x", "float32",
    "a" * 5000, [], [0], ["x"], [None], [[[]]], {}, {"a": 1}, {"selector": "x", "parameters": {}},
]  # fmt: skip


def _places(value: object, holder: object = None, key: object = None) -> list[tuple]:
    """Returns (holder, key) of each value in plain data."""
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    deeper = [_places(x, value, k) for k, x in pairs]
    return [(holder, key), *(place for places in deeper for place in places)]


@st.composite
def changed_json(draw: st.DrawFn, value: object) -> object:
    """Plain data with one to three values set, removed, added or exchanged."""
    whole = copy.deepcopy([value])
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(_places(whole)[1:]))
        kind = draw(st.sampled_from(["set", "set", "set", "remove", "add", "other"]))
        if kind == "remove" and holder is not whole:
            del holder[key]
            continue
        drawn = draw(st.sampled_from(_VALUES))
        if kind == "other":
            other, place = draw(st.sampled_from(_places(whole)[1:]))
            drawn = other[place]
        drawn = copy.deepcopy(drawn)
        if kind == "add" and isinstance(holder[key], dict):
            holder[key]["more"] = drawn
        elif kind == "add" and isinstance(holder[key], list):
            holder[key].append(drawn)
        else:
            holder[key] = drawn
    return whole[0]


_PIECES = [
    "{{ ", " }}", "{% ", " %}", "|||", "words", "text", "label", "answer_choices", "[", "]", "(",
    ")", ".", " | ", "join", "upper", "map('upper')", "list", "replace('', text)",
    "center(10**9)", "~", "*", "**", "+", "%", "9", "10**10", "'a'", "'%99999d'", ".append(1)",
    ".clear()", ".format(", "range(9**9)", "for i in words", "endfor", "if label", "else",
    "endif", "set x = x ~ x", "set x = [words, words]", "macro m(a)", "endmacro", "m(1)",
    "loop(words)", "for i in range(99999)", "x", "i", "namespace(s=1)", "__class__",
    "attr('__init__')", "cycler(1)", "dict", "zip(words, words)", "random", "choice", "\0", "é",
]  # fmt: skip
_STATEMENTS = [
    "{% for i in range(99999) %}", "{% for w in words %}", "{% endfor %}",
    "{{ words.append(text) or '' }}", "{% set s = (s or 'ab') ~ (s or 'ab') %}",
    "{{ (text * 99999) }}", "{{ text.replace('', text) }}", "{% set ns = namespace(a=words) %}",
    "{% set ns.a = ns.a + ns.a %}", "{{ deep.k.pop() }}", " ||| ", "{{ answer_choices[label] }}",
    "{{ words | map('center', 99999999) | list }}", "{% if label %}", "{% endif %}",
    "{% macro m() %}", "{% endmacro %}", "{{ m() }}", "{% set x %}", "{% endset %}",
    "{{ '{:>9999999999}'.format(1) }}",
]  # fmt: skip
jinja = st.one_of(
    st.lists(st.sampled_from(_STATEMENTS), max_size=12).map("".join),
    st.lists(st.sampled_from(_PIECES), max_size=20).map("".join),
    st.lists(st.sampled_from(_PIECES + _STATEMENTS), max_size=20).map(" ".join),
)
