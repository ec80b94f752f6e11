"""Paths that no command can use, and what is wrong with a command's answer to one."""

import re

KINDS = ["long", "newline", "file", "folder", "below a file", "loop", "shut file", "shut folder"]


def hostile(kind, folder):
    """Makes a path of a kind and returns it."""
    path = folder / "hostile"
    if kind == "long":
        return folder / ("x" * 300)
    if kind == "newline":
        return folder / "two\nlines\x1b[31m"
    if kind == "loop":
        path.symlink_to(path)
    elif "folder" in kind:
        path.mkdir()
        (path / "results_1.json").write_text("{}")
    else:
        path.write_text("{}")
    if kind.startswith("shut"):
        path.chmod(0)
    return path / "x" if kind == "below a file" else path


def fault(program, kind, status, text):
    """What is wrong with a command's answer, in a list that is empty if it is right."""
    if status not in (0, 1, 2) or "Traceback" in text or "\x1b[31m" in text:
        return [f"{kind}: status {status}: {text[-700:]}"]
    if status == 2 and not re.search(rf"^({program}( \w+)?: |usage: {program})", text, re.M):
        return [f"{kind}: no message of {program}: {text[-700:]}"]
    return []
