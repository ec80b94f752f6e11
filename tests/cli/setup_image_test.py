"""bin/setup on an imitated TPU VM image: a Python 3.10 with a real TensorFlow in dist-packages.

Downloads TensorFlow and the lock for Python 3.10 from the package index, for some minutes:
bin/test -m network tests/cli/setup_image_test.py
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOOK = "import t0.seqio_tasks, tensorflow, mesh_tensorflow; print(tensorflow.__file__)"

pytestmark = pytest.mark.network


def run(*words, **settings):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def image(tmp_path):
    """A Python as Google's images have it: packages in a folder beside its own."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [*pyenv.glob("versions/3.10.*/bin/python3.10"), shutil.which("python3.10")]
    python = next(filter(None, found), None)
    if python is None:
        pytest.skip("there is no Python 3.10 here, which the images have")
    folder = tmp_path / "image"
    run(python, "-m", "venv", "--without-pip", folder / "prefix")
    packages = folder / "dist-packages"
    site = folder / "prefix" / "lib" / "python3.10" / "site-packages"
    (site / "dist.pth").write_text(f"{packages}\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--target", packages)
    run(*pip, "tensorflow==2.15.1")
    return folder


def content(folder):
    """The files of a folder, compiled ones left out, and a hash of all they hold."""
    found = hashlib.sha256()
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    for path in paths:
        found.update(str(path).encode() + path.read_bytes())
    return len(paths), found.hexdigest()


def test_setup_on_tpu_image_uses_the_system_tensorflow(image, tmp_path):
    checkout, packages = tmp_path / "checkout", image / "dist-packages"
    run("git", "clone", "--quiet", ROOT, checkout)
    before = content(packages)
    given = {**os.environ, "T0_PYTHON": str(image / "prefix" / "bin" / "python")}
    run("bin/setup", "--system-tensorflow", cwd=checkout, env=given)
    python = checkout / ".venv" / "bin" / "python"
    imported = run(python, "-c", LOOK, cwd=tmp_path).splitlines()[-1]
    assert Path(imported).is_relative_to(packages)
    words = ["t5_mesh_transformer", "--gin_file=models/t5.1.1.tiny.gin", "--dry_run"]
    words += ["--gin_file=dataset.gin", "--gin_param=MIXTURE_NAME = 't0_train'"]
    shown = run(python.parent / words[0], *words[1:], cwd=tmp_path)
    assert "models/t5.1.1.tiny.gin" in shown
    assert content(packages) == before
