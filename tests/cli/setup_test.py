"""bin/setup, with uv imitated by a script that records its commands; .ci/run has the real one."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = {"3.10": "3.11", "3.11": "3.10"}[HERE]
LOCK = {"3.11": "requirements.lock", "3.10": "requirements-3.10.lock"}[HERE]
# A Python whose environments are made quickly, and whose pip "installs" the imitated uv.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) exec {python} -m venv --without-pip "$3" ;;
  "-m pip config list") printf '%s' "$PIP_CONFIG" ;;
  "-m pip install "*" --target .uv "*)
    mkdir -p .uv/bin .uv/uv-VERSION.dist-info && cp {uv} .uv/bin/uv ;;
  *) exec {python} "$@" ;;
esac
"""
UV = """#!{python} -IS
import os, pathlib, sys
log = pathlib.Path(os.environ["LOG"])
words = sys.argv[1:]
with log.open("a") as file:
    settings = {{k: v for k, v in os.environ.items() if k.startswith(("UV_", "SSL_"))}}
    print(" ".join(words), "#", settings, file=file)
if words[:2] == ["python", "find"]:
    print(os.environ["FOUND"])
if "-r" in words:
    log.with_name("lock.txt").write_text(pathlib.Path(words[-1]).read_text())
sys.exit(int(os.environ.get("STATUS", "0")))
"""


class Checkout:
    """A folder with what bin/setup reads, and the commands that it gives."""

    def __init__(self, folder):
        self.root, self.log = folder / "checkout", folder / "log"
        script = ROOT / "t0" / "cli" / "system_tensorflow.py"
        for path in (ROOT / "bin" / "setup", script, *ROOT.glob("requirements*.lock")):
            target = self.root / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        for name in ("setup.py", "pyproject.toml", "t0/__init__.py"):
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).touch()
        tools = folder / "tools"
        tools.mkdir()
        version = (ROOT / "bin" / "setup").read_text().partition("uv_version=")[2].split()[0]
        self.uv, self.python = tools / "uv", folder / "python"
        self.uv.write_text(UV.format(python=sys.executable))
        text = PYTHON.format(python=sys.executable, uv=tools / "uv")
        self.python.write_text(text.replace("VERSION", version))
        for path in (self.uv, self.python):
            path.chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": str(folder),
            "T0_PYTHON": str(self.python),
            "LOG": str(self.log),
        }
        self.site = self.root / ".venv" / "lib" / f"python{HERE}" / "site-packages"

    def start(self, *words, **environment):
        self.log.write_text("")
        return subprocess.Popen(
            [str(self.root / "bin" / "setup"), *words],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words, status=0, **environment):
        """Returns what is printed and the commands of uv."""
        started = self.start(*words, **environment)
        said = started.communicate(timeout=300)[0]
        assert started.returncode == status, said
        return said, self.log.read_text().splitlines()

    def lock(self):
        return self.log.with_name("lock.txt").read_text()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_setup_second_run_does_nothing(checkout):
    said, (packages, ours) = checkout.run()
    assert "making .venv" in said and said.endswith("done\n")
    assert "--no-deps" in packages and "--require-hashes -r" in packages
    assert "--no-build-isolation --reinstall-package t0 --editable ." in ours
    locked = (checkout.root / LOCK).read_text()
    assert checkout.lock() == "".join(
        line for line in locked.splitlines(keepends=True) if not line.startswith("#")
    )
    assert "\npromptsource==0.1.0 " in locked
    made = (checkout.root / ".venv" / "pyvenv.cfg").stat().st_ino
    assert checkout.run() == ("", [])
    assert checkout.run(T0_PYTHON="") == ("", [])  # named once, it is remembered

    # Another setup.py: installed again, into the same environment.
    (checkout.root / "setup.py").write_text("setup()")
    assert len(checkout.run()[1]) == 2
    assert (checkout.root / ".venv" / "pyvenv.cfg").stat().st_ino == made


def test_setup_resumes_after_a_failed_run(checkout):
    checkout.run()
    (checkout.root / "setup.py").write_text("setup()")
    checkout.run(STATUS="3", status=3)
    assert len(checkout.run()[1]) == 2


def test_setup_installs_uv_if_it_is_missing(checkout):
    checkout.environment["PATH"] = "/usr/bin:/bin"
    said, commands = checkout.run()
    assert "installing uv" in said and len(commands) == 2
    (checkout.root / "setup.py").write_text("setup()")
    said, commands = checkout.run()
    assert "installing uv" not in said and len(commands) == 2


def test_setup_finds_python_with_uv(checkout):
    _, (find, *_) = checkout.run(T0_PYTHON="", FOUND=str(checkout.python))
    assert find.startswith("python find --system --no-python-downloads 3.11 ")
    _, (find, *_) = checkout.run("--python", OTHER, T0_PYTHON="", FOUND="/bin/false", status=1)
    assert f"--no-python-downloads {OTHER} " in find


def test_setup_passes_pip_settings_to_uv(checkout):
    lines = [
        ":env:.find-links='/wheels'",
        "global.cert='/ca.pem'",
        "global.extra-index-url='file:///one\\nfile:///two'",
        "global.find-links='/wheels /more'",
        "global.index-url='https://index'",
        ":env:.no-index='1'",
    ]
    settings = {
        "UV_DEFAULT_INDEX": "https://index",
        "UV_INDEX": "file:///one file:///two",
        "UV_FIND_LINKS": "/wheels,/wheels,/more",
        "SSL_CERT_FILE": "/ca.pem",
    }
    _, commands = checkout.run(PIP_CONFIG="\n".join(lines) + "\n", UV_OFFLINE="1")
    for command in commands:
        words, _, given = command.partition(" # ")
        assert " --no-index " in words
        assert ast.literal_eval(given) == settings | {"UV_OFFLINE": "1"}
    (checkout.root / "setup.py").write_text("setup()")
    _, commands = checkout.run(PIP_CONFIG="global.find-links='/wheels'\n", UV_FIND_LINKS="/mine")
    assert "'/mine'" in commands[0] and "/wheels" not in commands[0]


@pytest.mark.parametrize(
    ("python", "words", "message"),
    [
        ("/nowhere/python", [], "/nowhere/python is Python missing; expected Python 3.11 or 3.10"),
        ("/bin/false", ["--python", "3.10"], "/bin/false is Python missing; expected Python 3.10"),
        (sys.executable, ["--python", OTHER], f"is Python {HERE}.* expected Python {OTHER}"),
    ],
)
def test_setup_names_an_unusable_python(checkout, python, words, message):
    said, commands = checkout.run(*words, T0_PYTHON=python, status=1)
    assert re.search(message, said) and not commands


@pytest.mark.parametrize("kernel", ["Darwin", "MINGW64_NT-10.0"])
def test_setup_refuses_a_machine_without_linux(checkout, kernel):
    uname = checkout.uv.with_name("uname")
    uname.write_text(f"#!/bin/sh\necho {kernel}\n")
    uname.chmod(0o755)
    said, commands = checkout.run(status=1)
    assert f"runs {kernel}; expected Linux. Use the Docker image" in said and not commands
    assert "usage:" in checkout.run("--help")[0]


def test_setup_without_network_says_how_to_install(checkout):
    folder = "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER bin/setup"
    said, commands = checkout.run(T0_PYTHON="", FOUND="", STATUS="2", status=1)
    assert "no Python 3.11 or 3.10 was found or downloaded. Install it, or set its path" in said
    assert "python install 3.11 " in commands[-1]
    said, _ = checkout.run(STATUS="2", status=2)
    assert "uv cannot install the packages. Without a network, " in said and folder in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "jax"], "--with jax: choose from torch, hf, quantized, tpu"),
        (["--python=3.12"], "--python takes 3.10 or 3.11"),
        (["--wiht", "hf"], "unknown option --wiht"),
    ],
)
def test_setup_unknown_option_is_refused(checkout, words, message):
    assert message in checkout.run(*words, status=2)[0]


def test_setup_optional_packages_are_locked_and_kept(checkout):
    checkout.run()
    _, (locked, torch, ours) = checkout.run("--with", "hf")
    assert "torch==2.13.0 -c " in torch and "-c requirements-torch.lock" in torch
    assert "--no-deps" not in torch and "--require-hashes" not in torch
    assert "--require-hashes" in locked and "--editable ." in ours
    text = checkout.lock()
    assert "\ntransformers==" in text and "\ntokenizers==" in text and "\nnvidia-" not in text
    assert "\ntensorflow==" in text and "seqio-nightly" not in text

    # They stay, also when more is added; a run with the same ones has nothing to do.
    assert checkout.run("--with=hf")[1] == checkout.run()[1] == []
    assert len(checkout.run("--with", "tpu", "torch")[1]) == 3
    assert "\ngoogle-api-python-client==" in checkout.lock()
    assert "\ntransformers==" in checkout.lock()


def make_image(folder, version="2.15.1"):
    """Makes a Python with TensorFlow in dist-packages, as in images; returns the interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "dist-packages"
    site = folder / "lib" / f"python{HERE}" / "site-packages"
    (site / "dist.pth").write_text(f"{packages}\n")
    for package, its in {"tensorflow": version, "keras": "2.15.0", "numpy": "1.24.4"}.items():
        info = packages / f"{package}-{its}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {its}\n")
    (packages / "tensorflow").mkdir()
    (packages / "tensorflow" / "__init__.py").touch()
    return str(folder / "bin" / "python")


@pytest.mark.slow
def test_setup_does_not_reinstall_packages_of_the_image(checkout, tmp_path):
    python = make_image(tmp_path / "image", "2.15.1+tpu")
    packages = tmp_path / "image" / "dist-packages"
    checkout.run("--system-tensorflow", T0_PYTHON=python)
    text, whole = checkout.lock(), (checkout.root / LOCK).read_text()
    assert "\ntensorflow==" in whole and "\ntensorflow==" not in text
    assert "\nkeras==" in whole and "\nkeras==" not in text
    # The image's numpy is not that of the lock, and its release does not hang on TensorFlow's.
    assert "\nnumpy==" in text and "\ntensorflow-text==" in text
    besides = (checkout.root / "requirements-tpu.lock").read_text()
    assert text.count("==") == whole.count("==") - 2 + besides.count("==")
    stands = checkout.site / "t0_system_tensorflow.pth"
    assert stands.read_text() == f"{packages}\n"
    assert checkout.run(T0_PYTHON="") == ("", [])  # what was chosen is kept
    # The lock's TensorFlow beside the image's would be shadowed by it, or shadow it.
    assert "making .venv" in checkout.run("--locked-tensorflow")[0]
    assert not stands.exists() and checkout.run() == ("", [])


def test_setup_refuses_image_without_fitting_tensorflow(checkout, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    bare = str(bare / "bin" / "python")
    said, _ = checkout.run("--system-tensorflow", T0_PYTHON=bare, status=1)
    wanted = "has no TensorFlow 2.15.1 that is installed for all users. Create the TPU VM with"
    assert wanted in said and "tpu-vm-tf-2.15.1-pod-se" in said and "--locked-tensorflow" in said
    python = make_image(tmp_path / "image", "2.18.0")
    said, _ = checkout.run("--system-tensorflow", T0_PYTHON=python, status=1)
    assert f"{python} {wanted}" in said
    # What was installed for one user alone is not the image's.
    path = str(tmp_path / "user" / "dist-packages")
    make_image(tmp_path / "user")
    said, _ = checkout.run("--system-tensorflow", T0_PYTHON=bare, PYTHONPATH=path, status=1)
    assert wanted in said
