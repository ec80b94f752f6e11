"""Splits the operative config into a file for stock T5 and a file with this project's names.

    stock, ours = split(gin.operative_config_str())
    save("/models/tiny", stock + ours)           # writes both files
    companion("/models/tiny/operative_config.gin")       # ".../operative_config.t0.gin"

`operative_config.gin` contains the bindings to functions of T5 0.9.4 and Mesh TensorFlow, so that
T5's own `t5_mesh_transformer` and its Model API can read it. `operative_config.t0.gin`, next to it,
contains the bindings to functions that `t0` registers, and the bindings whose value is such a
function. Whenever this project reads a file named `operative_config.gin`, it then also reads
`operative_config.t0.gin` (`t0.config.gin_files.resolved_names`). Older versions of this project
wrote all bindings into `operative_config.gin`.
"""

import posixpath
import re
from collections.abc import Sequence

from t0.files import write_whole

FILE, OURS = "operative_config.gin", "operative_config.t0.gin"
# The packages whose functions stock T5 does not know.
_PACKAGES = ("t0", "seqio_tasks")
_NOTE = f"# The settings of the package t0 are in {OURS}, next to this file.\n"
_SECTION = re.compile(r"^(?=# (?:Parameters for .*|Macros):$)", re.M)
_BINDING = re.compile(r"(?P<name>[^\s#=]+) = ")
_REFERENCE = re.compile(r"@(?:[\w.]+/)*([\w.]+)")
_MACRO = re.compile(r"%([\w./]+)")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


def companion(path: str) -> str | None:
    """Returns the path of the file `operative_config.t0.gin` next to an operative config.

    This file contains the bindings that stock T5 cannot read. Returns None if `path` is not an
    operative config.

    >>> companion("/models/tiny/operative_config.gin")
    '/models/tiny/operative_config.t0.gin'
    """
    folder, name = posixpath.split(path)
    return posixpath.join(folder, OURS) if name == FILE else None


def save(folder: str, text: str) -> None:
    """Writes an operative config into a folder as two files.

    The file with our names is written first.

    Args:
      folder: the model directory, local or gs://.
      text: the output of `gin.operative_config_str`.
    """
    stock, ours = split(text)
    write_whole(posixpath.join(folder, OURS), ours)
    write_whole(posixpath.join(folder, FILE), stock)


def split(text: str) -> tuple[str, str]:
    """Splits an operative config into a text that stock T5 can read and a text with our names.

    All functions in the text must be registered with gin.
    """
    imports, *sections = _SECTION.split(text)
    parsed_sections = [_parse_section(section) for section in sections]
    names = _our_names([binding for _, bindings in parsed_sections for binding in bindings])
    output_lines: tuple[list[str], list[str]] = ([], [])
    for line in imports.splitlines():
        output_lines[_imports_ours(line)].append(line + "\n")
    for head, bindings in parsed_sections:
        for index, is_ours in enumerate((False, True)):
            selected = [text for name, text in bindings if (name in names) == is_ours]
            if selected:
                output_lines[index].append(head + "".join(selected) + "\n")
        if not bindings:  # gin writes "None." for a function that was called without bindings
            output_lines[0].append(head)
    stock, ours = ("".join(lines).strip() + "\n" for lines in output_lines)
    return _NOTE + stock, ours


def _parse_section(section: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns the comment above a section's bindings, and (name, text) of each binding."""
    head, bindings = "", []
    for line in section.splitlines(keepends=True):
        start = _BINDING.match(line)
        if start:
            bindings.append((start["name"], line))
        elif not bindings:
            head += line
        elif line.strip():
            name, before = bindings[-1]
            bindings[-1] = (name, before + line)
    return head, bindings


def _imports_ours(line: str) -> bool:
    return any(word.partition(".")[0] in _PACKAGES for word in line.split()[1:2])


def _our_names(bindings: Sequence[tuple[str, str]]) -> set[str]:
    """Returns the names that stock T5 cannot bind, including macros that refer to such names."""
    ours = {name for name, text in bindings if _is_ours(name) or _refers_to_ours(text)}
    while True:
        more = {
            name
            for name, text in bindings
            if name not in ours and ours & set(_MACRO.findall(_TEXT.sub("", text)))
        }
        if not more:
            return ours
        ours |= more


def _is_ours(name: str) -> bool:
    """Returns whether a binding belongs to a function that this project registers."""
    selector, dot, _ = name.rpartition("/")[2].rpartition(".")
    return bool(dot) and _is_ours_selector(selector)


def _refers_to_ours(binding: str) -> bool:
    return any(map(_is_ours_selector, _REFERENCE.findall(_TEXT.sub("", binding))))


def _is_ours_selector(selector: str) -> bool:
    from t0.compat import gin_config

    matches = gin_config._REGISTRY.get_all_matches(selector)
    return any(match.selector.partition(".")[0] in _PACKAGES for match in matches)
