"""Writes requirements.lock (Python 3.11) and requirements-3.10.lock, and the locks of both Pythons.

    make locks                                           # pins that still fit stay
    .venv/bin/python .ci/make_locks.py --upgrade rich    # a newer release of one package

uv resolves the requirements, and names the files of each release that fit this Python on Linux
(x86_64). The lock has the hashes of these files and of the source distribution, from which uv
builds if no wheel fits. So `bin/setup` rejects a file that was changed after it was locked. At the
end, uv resolves the wheel's dependencies on both Pythons, as plain `pip install` would.

It needs Python 3.11 (tomllib).
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {"3.11": "requirements.lock", "3.10": "requirements-3.10.lock"}
# Source and lock, the same on both Pythons; whether the packages of `LOCKS` are left out.
COMMON = (
    ("requirements-tpu.in", "requirements-tpu.lock", True),
    ("requirements-torch.in", "requirements-torch.lock", True),
    ("docs/requirements.in", "docs/requirements.lock", False),  # has its own environment
)
# transformers, whose newest release for Python 3.10 is older.
HF_SOURCE = "requirements-hf.in"
HF_LOCKS = {"3.11": "requirements-hf.lock", "3.10": "requirements-hf-3.10.lock"}
# Packages that a lock leaves out: torch has other files, and other hashes, for the CPU and for each
# CUDA, and pip accepts no file without a hash if others have hashes.
OWN_BUILDS = ("torch",)
# The packages that tests compare with. Without hashes, because torch is one of them.
COMPARED = (".ci/transformers.in", ".ci/transformers.lock")
# Packages that only a build of torch for CUDA requires.
OF_CUDA = ("nvidia-", "cuda-", "triton")
PLATFORM = "x86_64-manylinux_2_28"
# Packages that T5 requires and this project does not need: nightly builds, whose releases are
# locked instead, and transformers, for a PyTorch model that is never used here.
LEFT_OUT = ("seqio-nightly", "tfds-nightly", "transformers")
# T5 asks for any TensorFlow, and tensorflow-text for 2.15.0 exactly on some platforms.
OVERRIDES = (*(f'{name} ; sys_platform == "never"' for name in LEFT_OUT), "tensorflow==2.15.1")
HEADER = (
    "# Made by `make locks` from {source}, for Python {pythons} on Linux (x86_64).\n"
    "# Change {source}, not this file.\n"
)

_PIN = re.compile(r"^[A-Za-z0-9][\w.-]*==[^\s\\]+", re.MULTILINE)


def pins(lock: str) -> list[str]:
    r"""Returns the pins of a lock's text, without their hashes.

    >>> pins("# made by\nrich==15.0.0 \\\n    --hash=sha256:ab\nsix==1.17.0\n")
    ['rich==15.0.0', 'six==1.17.0']
    """
    return _PIN.findall(lock)


def lock_lines(packages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    r"""Yields the lines of a lock from the packages of a pylock.toml.

    >>> wheel = {"hashes": {"sha256": "ab"}}
    >>> list(lock_lines([{"name": "six", "version": "1.17.0", "wheels": [wheel]}]))
    ['six==1.17.0 \\\n    --hash=sha256:ab']
    """
    for package in packages:
        files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        hashes = sorted({file["hashes"]["sha256"] for file in files})
        pin = f"{package['name']}=={package['version']}"
        yield " \\\n    ".join([pin, *(f"--hash=sha256:{value}" for value in hashes)])


def resolve(python: str, upgrades: Sequence[str], scratch: Path) -> list[str]:
    """Returns the lines of the lock of requirements.in for a Python."""
    before = ROOT / LOCKS[python]
    pinned, overrides = scratch / "pins.txt", scratch / "overrides.txt"
    overrides.write_text("\n".join(OVERRIDES) + "\n", encoding="utf-8")
    # uv keeps the versions that it finds in the file to write.
    _write_pins(pinned, before if before.exists() else ROOT / LOCKS["3.11"])
    upgraded = [word for name in upgrades for word in ("--upgrade-package", name)]
    _uv(python, ROOT / "requirements.in", pinned, "--override", str(overrides), *upgraded)
    return _lock_pins(python, pinned)


def resolve_common(
    source: str, lock: str, excludes_locked: bool, upgrades: Sequence[str], scratch: Path
) -> list[str]:
    """Returns the lines of a source's lock that serves both Pythons.

    `excludes_locked`: whether it is installed together with the packages of `LOCKS`. These limit
    the versions and are left out.
    """
    locks_by_python = {
        python: resolve_additional(
            python, source, lock, base_lock if excludes_locked else None, upgrades, scratch
        )
        for python, base_lock in LOCKS.items()
    }
    if len({tuple(pins("\n".join(lines))) for lines in locks_by_python.values()}) > 1:
        sys.exit(
            f"make_locks: {lock} would differ between the Pythons; limit the versions in {source}"
        )
    return merge_locks(locks_by_python.values())


def resolve_additional(
    python: str,
    source: str,
    lock: str,
    base_lock: str | None,
    upgrades: Sequence[str],
    scratch: Path,
) -> list[str]:
    """Returns the lines of a source's lock for a Python, without the pins of another lock."""
    pinned, base = scratch / "pins.txt", scratch / "base.txt"
    _write_pins(pinned, ROOT / lock)
    base.write_text("", encoding="utf-8")
    if base_lock:
        _write_pins(base, ROOT / base_lock)
    upgraded = [word for name in upgrades for word in ("--upgrade-package", name)]
    _uv(python, ROOT / source, pinned, "--constraint", str(base), *upgraded)
    base_pins = pins(base.read_text(encoding="utf-8"))
    additional = [
        pin
        for pin in pins(pinned.read_text(encoding="utf-8"))
        if pin not in base_pins and pin.partition("==")[0] not in OWN_BUILDS
    ]
    pinned.write_text("\n".join(additional) + "\n", encoding="utf-8")
    return _lock_pins(python, pinned)


def resolve_compared(python: str, upgrades: Sequence[str], scratch: Path) -> list[str]:
    """Returns the pins of the packages that tests compare with, without those of the base lock.

    The versions are those of the extra [hf] where both have a package.
    """
    source, lock = (ROOT / name for name in COMPARED)
    pinned, base, extra = (scratch / f"{name}.txt" for name in ("pins", "base", "extra"))
    _write_pins(pinned, lock)
    _write_pins(base, ROOT / LOCKS[python])
    _write_pins(extra, ROOT / HF_LOCKS[python])
    upgraded = [word for name in upgrades for word in ("--upgrade-package", name)]
    _uv(python, source, pinned, "--constraint", str(base), "--constraint", str(extra), *upgraded)
    base_pins = pins(base.read_text(encoding="utf-8"))
    resolved = pins(pinned.read_text(encoding="utf-8"))
    return [pin for pin in resolved if pin not in base_pins and not pin.startswith(OF_CUDA)]


def merge_locks(locks: Iterable[Sequence[str]]) -> list[str]:
    r"""Merges locks with the same pins; each pin gets the hashes of all locks.

    >>> merge_locks([["six==1.0 \\\n    --hash=sha256:b"], ["six==1.0 \\\n    --hash=sha256:a"]])
    ['six==1.0 \\\n    --hash=sha256:a \\\n    --hash=sha256:b']
    """
    hashes: dict[str, set[str]] = {}
    for line in itertools.chain.from_iterable(locks):
        pin, *words = line.split(" \\\n    ")
        hashes.setdefault(pin, set()).update(words)
    return [" \\\n    ".join([pin, *sorted(words)]) for pin, words in hashes.items()]


def _write_pins(path: Path, lock: Path) -> None:
    pinned = pins(lock.read_text(encoding="utf-8")) if lock.exists() else []
    path.write_text("\n".join(pinned) + "\n", encoding="utf-8")


def _lock_pins(python: str, pinned: Path) -> list[str]:
    import tomllib

    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "pylock.toml"
        _uv(python, pinned, files, "--no-deps", "--format", "pylock.toml")
        return list(lock_lines(tomllib.loads(files.read_text(encoding="utf-8"))["packages"]))


def _uv(python: str, source: Path, target: Path, *words: str) -> None:
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--strip-extras"]
    command += ["--python-version", python, "--python-platform", PLATFORM]
    subprocess.run([*command, *words, "-o", str(target), str(source)], check=True)


def write(name: str, lines: Sequence[str], source: str, pythons: str) -> None:
    """Writes a lock, and prints what changed in it."""
    path = ROOT / name
    before = set(pins(path.read_text(encoding="utf-8"))) if path.exists() else set()
    head = HEADER.format(source=source, pythons=pythons)
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    after = set(pins("\n".join(lines)))
    changes = [f"  - {pin}" for pin in before - after] + [f"  + {pin}" for pin in after - before]
    changes.sort(key=lambda line: (line[4:], line[2]))
    print("\n".join([f"{name}: {len(after)} packages", *changes]))


def main() -> None:
    """Writes the locks, prints what changed in each, and resolves the wheel's dependencies."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upgrade", nargs="*", default=[], metavar="PACKAGE")
    upgrades = parser.parse_args().upgrade
    if sys.version_info < (3, 11):
        sys.exit("make_locks: this needs Python 3.11 (tomllib); bin/setup --python 3.11")
    os.environ["PATH"] += f":{ROOT / '.uv' / 'bin'}"  # where bin/setup puts uv
    if shutil.which("uv") is None:
        sys.exit("make_locks: uv is not on PATH; rm .venv/.t0-setup, then bin/setup installs it")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for python, name in LOCKS.items():
            write(name, resolve(python, upgrades, scratch), "requirements.in", python)
        for source, name, excludes_locked in COMMON:
            lines = resolve_common(source, name, excludes_locked, upgrades, scratch)
            write(name, lines, source, " and ".join(sorted(LOCKS)))
        for python, name in HF_LOCKS.items():
            lines = resolve_additional(python, HF_SOURCE, name, LOCKS[python], upgrades, scratch)
            write(name, lines, HF_SOURCE, python)
        write(COMPARED[1], resolve_compared("3.11", upgrades, scratch), COMPARED[0], "3.11")
        for python in LOCKS:
            _uv(python, ROOT / "setup.py", scratch / "wheel.txt", "--extra", "tpu")
            print(f"Python {python}: the wheel's dependencies can be resolved")


if __name__ == "__main__":
    main()
