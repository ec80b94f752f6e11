"""What `bin/setup` does: makes .venv of a checkout, or brings it up to date.

    choice = choose(options(["--with", "torch"]), Path("."), Path("/"))
    choice.python, choice.locks     # "/usr/bin/python3.11", ("requirements.lock", ...)

It chooses a Python, 3.11 or 3.10, and whose TensorFlow: that of the lock, or that of the machine's
image, on which the environment then stands. An environment keeps what was chosen for it until other
options are given; packages that were added by `--with` stay. It installs the locks with their
hashes, promptsource, then this package (editable). A second run with the same choice, locks,
setup.py and pyproject.toml returns immediately.

Only the standard library is imported: this runs before anything is installed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t0.cli import system_tensorflow
from t0.cli.system_tensorflow import SystemTensorflow
from t0.errors import UserError, reported
from t0.mesh import tpu_image

# By Python, the one to prefer first.
LOCKS = {"3.11": "requirements.lock", "3.10": "requirements-3.10.lock"}
TPU_LOCK = "requirements-tpu.lock"
TORCH_LOCK = "requirements-torch.lock"
# Not in a lock: its builds for the CPU and for each CUDA have hashes of their own.
TORCH = "torch==2.13.0"
# Only a CUDA build of PyTorch needs these packages of its lock.
_FOR_CUDA = ("nvidia-", "cuda-", "triton")
OPTIONAL = ("torch", "hf", "tpu")
# It declares Python 3.7 but is plain data, so no list that pip checks can name it.
PROMPTSOURCE = (
    "promptsource==0.1.0 "
    "--hash=sha256:726289b468dbd3148d11e37a9959587f4dc560a5b9e95e7ace540e6727646178\n"
)
STAMP = ".t0-setup"
PATH_FILE = "t0_system_tensorflow.pth"
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)


@dataclass(frozen=True)
class Choice:
    """What an environment is made of.

    Attributes:
      python: the interpreter.
      version: its version, such as "3.10.12".
      tensorflow: the image's TensorFlow, or None for the lock's.
      for_tpu: whether this machine has TPU chips, which the lock's TensorFlow cannot drive.
      optional: the names of the optional packages, of `OPTIONAL`.
    """

    python: str
    version: str
    tensorflow: SystemTensorflow | None = None
    for_tpu: bool = False
    optional: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        """The Python's release: "3.10" or "3.11"."""
        return ".".join(self.version.split(".")[:2])

    @property
    def locks(self) -> tuple[str, ...]:
        """The names of the locks for it, Google's client among them on the image's TensorFlow."""
        base = LOCKS[self.release]
        tables = {
            base: True,
            TPU_LOCK: self.tensorflow or "tpu" in self.optional,
            TORCH_LOCK: self.with_torch,
            base.replace("requirements", "requirements-hf"): "hf" in self.optional,
        }
        return tuple(name for name, chosen in tables.items() if chosen)

    @property
    def with_torch(self) -> bool:
        """Whether PyTorch is installed."""
        return bool({"torch", "hf"} & set(self.optional))


def options(words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line of bin/setup."""
    parser = argparse.ArgumentParser(
        prog="bin/setup",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Makes .venv, or brings it up to date: the packages of requirements.lock "
        "(Python 3.11) or\nrequirements-3.10.lock, promptsource 0.1.0, and this package "
        "(editable); those of\nrequirements-tpu.lock where TensorFlow is this machine's. "
        "It is safe to run it again,\nand without options it keeps what .venv was made with.",
        epilog="environment:\n  T0_PYTHON   the Python to use, 3.11 or 3.10 (default: python3.11, "
        "python3.10, python3 or\n              python, or one of pyenv's, the first that there is)",
    )
    parser.add_argument("--python", choices=sorted(LOCKS), help="the Python to look for")
    parser.add_argument(
        "--with",
        dest="optional",
        nargs="+",
        action="extend",
        default=[],
        choices=OPTIONAL,
        help="add optional packages: torch (PyTorch's engine), hf (PyTorch and transformers), tpu "
        "(the client of the TPU API); they stay until .venv is removed",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--system-tensorflow",
        action="store_true",
        default=None,
        help="stand on the TensorFlow that is installed on this machine, and never replace it; the "
        "default on a TPU VM whose image brings one",
    )
    group.add_argument(
        "--locked-tensorflow",
        action="store_false",
        dest="system_tensorflow",
        help="install the lock's TensorFlow, which cannot drive TPUs; the default elsewhere",
    )
    return parser.parse_args(words)


def choose(wanted: argparse.Namespace, checkout: Path, root: Path) -> Choice:
    """Returns the Python and the TensorFlow to use.

    Args:
      wanted: the options; what they leave open is chosen as for the environment that there is,
        else by what this machine has.
      checkout: the folder of the checkout.
      root: the folder that holds `dev`, where TPU chips are devices.

    Raises:
      UserError: if there is no such Python, or no TensorFlow of the image that can work.
    """
    before = _stamp(checkout)
    stand = wanted.system_tensorflow
    if stand is None:
        stand = before.get("system_tensorflow")
    tpu = tpu_image.chips(root) > 0
    optional = tuple(sorted({*wanted.optional, *before.get("optional", ())} & {*OPTIONAL}))
    pythons = interpreters(wanted.python, before.get("python"), before.get("executable"))
    if stand or (tpu and stand is None):
        pythons = list(pythons)
        if found := _image_tensorflow(pythons, tpu=tpu, insist=bool(stand)):
            return Choice(found.python, found.python_version, found, optional=optional)
    for python, version in pythons:
        return Choice(python, version, for_tpu=tpu, optional=optional)
    raise UserError(_no_python(wanted.python))


def _image_tensorflow(
    pythons: Sequence[tuple[str, str]], *, tpu: bool, insist: bool
) -> SystemTensorflow | None:
    """Returns the first TensorFlow of the interpreters on which T0 can stand.

    Returns:
      None where none has TensorFlow, unless the user insists on one.

    Raises:
      UserError: if what there is cannot work.
    """
    hint = "" if insist else " (--locked-tensorflow takes the lock's, which cannot drive TPUs)"
    faults = []
    for python, _ in pythons:
        if found := system_tensorflow.look(python):
            fault = system_tensorflow.fault(found, tpu=tpu)
            if fault is None:
                return found
            faults.append(fault)
    if faults:
        raise UserError(f"{faults[0]}{hint}")
    if not insist:
        return None
    names = ", ".join(python for python, _ in pythons) or "no Python 3.10 or 3.11"
    raise UserError(
        f"found no TensorFlow for {names}; wanted is that of a TPU VM's image, installed for all "
        f"users (what `pip install --user` installed does not count): make the TPU VM with the "
        f"image {tpu_image.IMAGES}"
    )


def install(choice: Choice, checkout: Path) -> None:
    """Makes `.venv` as chosen, unless it is; one at a time, a second one waits for the first."""
    key = _key(choice, checkout)
    if _stamp(checkout).get("key") == key:
        return
    with _alone(checkout / ".venv.lock"):
        if _stamp(checkout).get("key") == key:
            return
        stamp = checkout / ".venv" / STAMP
        if _usable(choice, checkout):
            stamp.unlink(missing_ok=True)
        else:
            _make(choice, checkout)
        _fill(choice, checkout)
        content = {
            "key": key,
            "python": choice.release,
            "executable": choice.python,
            "system_tensorflow": choice.tensorflow is not None,
            "optional": choice.optional,
        }
        stamp.write_text(json.dumps(content) + "\n", encoding="utf-8")
    _say("done")


def requirements(lock: str, without: Sequence[str] = ()) -> tuple[str, int]:
    r"""Returns a lock's text without some packages, and how many packages are left.

    >>> requirements("keras==2.15.0 \\\n    --hash=sha256:ab\nsix==1.17.0\n", ["keras"])
    ('six==1.17.0\n', 1)
    """
    kept, count, keep = [], 0, True
    for line in lock.splitlines(keepends=True):
        if pin := _PIN.match(line):
            keep = pin[1] not in without
            count += keep
        if keep:
            kept.append(line)
    return "".join(kept), count


def interpreters(
    release: object, preferred: object = None, kept: object = None
) -> Iterator[tuple[str, str]]:
    """Yields the interpreters that can be used, with their versions, the best first.

    Args:
      release: the only release to look for, or None for those of `LOCKS`.
      preferred: the release to look for first.
      kept: the interpreter to look at first, unless the user names one.
    """
    releases = sorted([release] if release else LOCKS, key=lambda one: one != preferred)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = _named()
    first = [named] if named else [str(kept)] if kept else []
    seen = set()
    for one in releases:
        found = map(str, sorted(pyenv.glob(f"versions/{one}.*/bin/python{one}")))
        for candidate in first if named else [*first, f"python{one}", "python3", "python", *found]:
            python, version = _version(candidate, as_it_is=candidate in first)
            if version.startswith(f"{one}.") and os.path.realpath(python) not in seen:
                seen.add(os.path.realpath(python))
                yield python, version


def _named() -> str | None:
    return os.environ.get("T0_PYTHON") or None


def _version(candidate: str, *, as_it_is: bool = True) -> tuple[str, str]:
    """Returns the path and the version of an interpreter, or two empty strings.

    Args:
      candidate: a path, or a name on PATH.
      as_it_is: False for the interpreter that a virtual environment, which may be `.venv` itself,
        was made with.
    """
    kept = "executable" if as_it_is else "_base_executable"
    code = f"import sys; print(sys.{kept}); print('%d.%d.%d' % sys.version_info[:3])"
    try:
        # -I: whatever folder and packages of the user's are about, this must run.
        answer = subprocess.run([candidate, "-I", "-c", code], capture_output=True, text=True)
    except OSError:
        return "", ""
    lines = answer.stdout.splitlines()
    return (lines[0], lines[1]) if answer.returncode == 0 and len(lines) == 2 else ("", "")


def _no_python(release: str | None) -> str:
    wanted = release or " or ".join(LOCKS)
    if named := _named():
        _, version = _version(named)
        got = f"is Python {version}" if version else "cannot be run"
        return f"T0_PYTHON={named} {got}; wanted is Python {wanted} (TensorFlow 2.15 has no newer)"
    return (
        f"no Python {wanted} was found (TensorFlow 2.15 has no wheels for newer ones). Install it, "
        f"or name it: T0_PYTHON=/path/to/python{wanted.split()[0]} bin/setup"
    )


def _stamp(checkout: Path) -> Mapping[str, object]:
    """Returns what the environment was made with; nothing where it has to be made again."""
    try:
        content = json.loads((checkout / ".venv" / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # Made before there was a choice, a stamp is text alone.
    known = isinstance(content, dict) and content.get("python") in LOCKS
    return content if known else {}


def _key(choice: Choice, checkout: Path) -> str:
    """Returns what `.venv` depends on, as a checksum.

    The folder is part of it: an environment that was moved or copied does not work.
    """
    digest = hashlib.sha256()
    for name in (*choice.locks, "setup.py", "pyproject.toml"):
        digest.update((checkout / name).read_bytes())
    for path in (__file__, system_tensorflow.__file__):
        digest.update(Path(path).read_bytes())
    found = choice.tensorflow
    stands_on = found and (found.folder, found.version, sorted(found.taken.items()))
    digest.update(repr((choice.version, stands_on, str(checkout), choice.optional)).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another setup is under way, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _usable(choice: Choice, checkout: Path) -> bool:
    """Whether .venv was made in this folder, runs the Python and stands on the TensorFlow."""
    venv = checkout / ".venv"
    _, version = _version(str(venv / "bin" / "python"))
    if not version.startswith(choice.release + "."):
        return False
    try:
        activate = (venv / "bin" / "activate").read_text(encoding="utf-8")
        path_file = _site_packages(choice, checkout) / PATH_FILE
        stands = path_file.read_text(encoding="utf-8").strip() if path_file.exists() else None
    except OSError:
        return False
    return str(venv) in activate and stands == (choice.tensorflow and choice.tensorflow.folder)


def _site_packages(choice: Choice, checkout: Path) -> Path:
    return checkout / ".venv" / "lib" / f"python{choice.release}" / "site-packages"


def _make(choice: Choice, checkout: Path) -> None:
    venv = checkout / ".venv"
    _say(f"making .venv with Python {choice.version} ({choice.python})")
    if venv.is_symlink():
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)
    _run([choice.python, "-m", "venv", str(venv)])
    if choice.tensorflow:
        # Not --system-site-packages, which brings the user's own packages, too.
        path_file = _site_packages(choice, checkout) / PATH_FILE
        path_file.write_text(choice.tensorflow.folder + "\n", encoding="utf-8")


def _fill(choice: Choice, checkout: Path) -> None:
    """Installs everything into `.venv`."""
    found = choice.tensorflow
    taken = found.taken if found else {}
    if found:
        _say(f"standing on {found}")
        _say("taken from there: " + ", ".join(f"{name} {taken[name]}" for name in sorted(taken)))
        if not tpu_image.drives_tpu(Path(found.folder) / "tensorflow"):
            _say("this TensorFlow was built without TPUs: it computes on processors and GPUs")
    elif choice.for_tpu:
        _say(
            "this machine has TPU chips, but no TensorFlow that drives them: the lock's computes "
            f"on the processors; for the chips, make the TPU VM with the image {tpu_image.IMAGES}"
        )
    lock = "".join((checkout / name).read_text(encoding="utf-8") for name in choice.locks)
    left_out = list(taken)
    if choice.with_torch:
        _say(f"installing {TORCH}")
        _pip(checkout, TORCH + "\n")
        if not _needs_cuda(checkout):
            left_out += [pin for pin in _PIN.findall(lock) if pin.startswith(_FOR_CUDA)]
    text, count = requirements(lock, left_out)
    locks = " and ".join(choice.locks)
    _say(f"installing {count} packages of {locks} (a few minutes the first time)")
    _pip(checkout, text, "--require-hashes")
    _pip(checkout, PROMPTSOURCE, "--require-hashes", "--ignore-requires-python")
    # Last, because SeqIO and T5 install commands of the same names as ours.
    _pip(checkout, "", "--no-build-isolation", "--editable", str(checkout))
    python = str(checkout / ".venv" / "bin" / "python")
    _run([python, "-c", "import t0"], cwd=checkout)
    if found:
        check_not_shadowed(python, found)


def _pip(checkout: Path, requirements_text: str, *words: str) -> None:
    python = str(checkout / ".venv" / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-deps", "--use-pep517", *words]
    with tempfile.TemporaryDirectory(prefix="t0_setup_") as folder:
        if requirements_text:
            path = Path(folder) / "requirements.txt"
            path.write_text(requirements_text, encoding="utf-8")
            command += ["-r", str(path)]
        _run(command, cwd=checkout)


def _needs_cuda(checkout: Path) -> bool:
    """Returns whether the installed build of PyTorch requires NVIDIA's packages."""
    code = "from importlib.metadata import requires; print(requires('torch'))"
    python = str(checkout / ".venv" / "bin" / "python")
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    return answer.returncode != 0 or any(name in answer.stdout for name in _FOR_CUDA)


def check_not_shadowed(python: str, found: SystemTensorflow) -> None:
    """Raises a `UserError` if `python` imports another TensorFlow than the one that was found."""
    code = "import importlib.util as u; print(u.find_spec('tensorflow').origin)"
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    origin = answer.stdout.strip()
    if not Path(origin or "/").is_relative_to(found.folder):
        raise UserError(
            f"the environment imports TensorFlow from {origin or 'nowhere'}, not from "
            f"{found.folder}; rm -rf .venv, then bin/setup --system-tensorflow"
        )


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd)
    if done.returncode:
        raise UserError(f"exit status {done.returncode} of: {' '.join(command)}")


def _say(line: str) -> None:
    print(f"bin/setup: {line}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Runs bin/setup, and returns its exit status."""
    checkout = Path(__file__).resolve().parents[2]
    with reported("bin/setup"):
        wanted = options(sys.argv[1:] if words is None else words)
        if not (checkout / "requirements.lock").exists():
            raise UserError(f"{checkout} is not a checkout of this project: no requirements.lock")
        install(choose(wanted, checkout, Path("/")), checkout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
