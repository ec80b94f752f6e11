"""bin/setup, with pip's part recorded instead of done. What pip does is tested in .ci/run."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from t0.cli import install, system_tensorflow
from t0.cli.system_tensorflow import SystemTensorflow
from t0.errors import UserError
from t0.mesh import tpu_image

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
STREAM_EXECUTOR = b"\x7fELF ... TPU_LIBRARY_PATH ..."


def choose(*words, checkout, root):
    return install.choose(install.options(words), checkout, root)


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    for path in (ROOT / "setup.py", ROOT / "pyproject.toml", *ROOT.glob("requirements*.lock")):
        shutil.copyfile(path, folder / path.name)
    return folder


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    monkeypatch.setenv("T0_PYTHON", sys.executable)
    for name in tpu_image.PJRT_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def commands(monkeypatch):
    """The commands of pip; an environment is made, but without pip."""
    ran = []

    def run(command, cwd=None):
        if command[1:3] == ["-m", "venv"]:
            subprocess.run([*command[:3], "--without-pip", *command[3:]], check=True)
        elif "-r" in command:
            ran.append((command, Path(command[-1]).read_text(encoding="utf-8")))
        else:
            ran.append((command, ""))

    monkeypatch.setattr(install, "_run", run)
    return ran


@pytest.fixture
def machine(tmp_path):
    """A machine with the TPU chips of a v3."""
    (tmp_path / "machine" / "dev").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "machine" / "dev" / f"accel{number}").touch()
    return tmp_path / "machine"


def make_image(folder, name="tensorflow", version="2.15.1", library=STREAM_EXECUTOR):
    """Makes a Python with TensorFlow in dist-packages, as in images; returns the interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "dist-packages"
    site = folder / "lib" / f"python{HERE}" / "site-packages"
    (site / "dist.pth").write_text(f"{packages}\n")
    for package, its in {name: version, "keras": "2.15.0", "numpy": "1.24.4"}.items():
        info = packages / f"{package.replace('-', '_')}-{its}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {its}\n")
    (packages / "tensorflow").mkdir()
    (packages / "tensorflow" / "__init__.py").touch()
    (packages / "tensorflow" / tpu_image.LIBRARIES[0]).write_bytes(library)
    return str(folder / "bin" / "python")


def test_the_lock_is_that_of_the_python(checkout, tmp_path):
    choice = choose(checkout=checkout, root=tmp_path)
    assert (choice.release, choice.locks) == (HERE, (install.LOCKS[HERE],))
    assert choice.tensorflow is None


@pytest.mark.parametrize(
    ("python", "words", "message"),
    [
        (
            "/nowhere/python",
            [],
            "T0_PYTHON=/nowhere/python cannot be run; wanted is Python 3.11 or",
        ),
        ("/bin/false", ["--python", "3.10"], "cannot be run; wanted is Python 3.10"),
    ],
)
def test_a_python_that_cannot_be_used_is_named(monkeypatch, checkout, python, words, message):
    monkeypatch.setenv("T0_PYTHON", python)
    with pytest.raises(UserError, match=message):
        choose(*words, checkout=checkout, root=checkout)


def test_another_python_than_the_named_one_is_refused(checkout):
    other = next(release for release in install.LOCKS if release != HERE)
    with pytest.raises(UserError, match=f"is Python {HERE}.*wanted is Python {other}"):
        choose("--python", other, checkout=checkout, root=checkout)


def test_a_second_run_has_nothing_to_do(checkout, commands, capsys):
    choice = choose(checkout=checkout, root=checkout)
    install.install(choice, checkout)
    assert [line for line in capsys.readouterr().out.splitlines() if "making .venv" in line]
    texts = [text for _, text in commands]
    assert texts[0] == (checkout / install.LOCKS[HERE]).read_text(encoding="utf-8")
    assert texts[1] == install.PROMPTSOURCE
    assert all("--require-hashes" in command for command, text in commands if text)
    assert commands[2][0][-2:] == ["--editable", str(checkout)]
    made = (checkout / ".venv" / "pyvenv.cfg").stat().st_ino
    commands.clear()
    install.install(choose(checkout=checkout, root=checkout), checkout)
    assert not commands and not capsys.readouterr().out

    # Another setup.py: installed again, into the same environment.
    (checkout / "setup.py").write_text("setup()")
    install.install(choose(checkout=checkout, root=checkout), checkout)
    assert commands and (checkout / ".venv" / "pyvenv.cfg").stat().st_ino == made


def test_a_killed_run_is_taken_up(checkout, commands, monkeypatch):
    choice = choose(checkout=checkout, root=checkout)
    install.install(choice, checkout)
    (checkout / "setup.py").write_text("setup()")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(install, "_pip", killed)
        with pytest.raises(KeyboardInterrupt):
            install.install(choice, checkout)
    commands.clear()
    install.install(choice, checkout)
    assert commands


def test_an_environment_of_another_folder_is_left_alone(checkout, commands, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkout, other)
    choice = choose(checkout=checkout, root=tmp_path)
    install.install(choice, checkout)
    (other / ".venv").symlink_to(checkout / ".venv")
    install.install(choice, other)
    assert not (other / ".venv").is_symlink()
    assert str(other / ".venv") in (other / ".venv" / "bin" / "activate").read_text()
    assert (checkout / ".venv" / install.STAMP).exists()


def test_a_second_setup_waits_for_the_first(checkout, commands, capsys):
    choice = choose(checkout=checkout, root=checkout)
    with open(checkout / ".venv.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = threading.Thread(target=install.install, args=(choice, checkout))
        second.start()
        second.join(0.3)
        assert second.is_alive() and not (checkout / ".venv").exists()
    second.join()
    out = capsys.readouterr().out
    assert out.index("waiting for it") < out.index("making .venv")


def test_an_environment_keeps_what_was_chosen(checkout, commands, tmp_path, monkeypatch):
    python = make_image(tmp_path / "image")
    monkeypatch.setattr(install, "check_not_shadowed", lambda *_: None)
    monkeypatch.setenv("T0_PYTHON", python)
    choice = choose("--system-tensorflow", checkout=checkout, root=tmp_path)
    install.install(choice, checkout)
    stands = checkout / ".venv" / "lib" / f"python{HERE}" / "site-packages" / install.PATH_FILE
    assert stands.read_text() == f"{tmp_path / 'image' / 'dist-packages'}\n"
    assert choose(checkout=checkout, root=tmp_path) == choice
    with monkeypatch.context() as patch:
        patch.delenv("T0_PYTHON")  # named once, it is remembered
        assert choose(checkout=checkout, root=tmp_path) == choice
    stamp = json.loads((checkout / ".venv" / install.STAMP).read_text())
    assert (stamp["python"], stamp["system_tensorflow"]) == (HERE, True)
    # The lock's TensorFlow beside the image's would be shadowed by it, or shadow it.
    install.install(choose("--locked-tensorflow", checkout=checkout, root=tmp_path), checkout)
    assert not stands.exists()
    assert choose(checkout=checkout, root=tmp_path).tensorflow is None


def make_torch(checkout, requires):
    """Puts the metadata of a build of PyTorch into the environment."""
    site = checkout / ".venv" / "lib" / f"python{HERE}" / "site-packages"
    info = site / "torch-2.13.0.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", "Name: torch", "Version: 2.13.0"]
    lines += [f"Requires-Dist: {name}" for name in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("requires", "for_cuda"),
    [
        (["sympy", "nvidia-cudnn-cu13==9.20.0.48; platform_system == 'Linux'"], True),
        (["sympy", "networkx"], False),
    ],
)
def test_optional_packages_are_locked_and_come_before_our_commands(
    checkout, commands, monkeypatch, requires, for_cuda
):
    install.install(choose(checkout=checkout, root=checkout), checkout)
    make_torch(checkout, requires)
    commands.clear()
    choice = choose("--with", "hf", checkout=checkout, root=checkout)
    install.install(choice, checkout)
    (torch, unhashed), (locked, text), *_, (last, _), (check, _) = commands
    assert unhashed == "torch==2.13.0\n" and "--require-hashes" not in torch
    assert "--no-deps" in torch and "--no-deps" in locked and "--require-hashes" in locked
    assert "\ntransformers==" in text and "\ntokenizers==" in text and "\nsympy==" in text
    assert "\ntensorflow==" in text and "seqio-nightly" not in text
    assert ("\nnvidia-cudnn-cu13==" in text) == ("\ntriton==" in text) == for_cuda
    assert last[-2:] == ["--editable", str(checkout)]  # SeqIO's command of the same name loses
    assert check[-1] == "import t0"

    # They stay, also when more is added; a run with the same ones has nothing to do.
    commands.clear()
    install.install(choose("--with", "hf", checkout=checkout, root=checkout), checkout)
    install.install(choose(checkout=checkout, root=checkout), checkout)
    assert not commands
    more = choose("--with", "tpu", "torch", checkout=checkout, root=checkout)
    assert more.optional == ("hf", "torch", "tpu") and install.TPU_LOCK in more.locks


def test_an_unknown_optional_package_is_refused(capsys):
    with pytest.raises(SystemExit):
        install.options(["--with", "jax"])
    assert "choose from 'torch', 'hf', 'tpu'" in capsys.readouterr().err


def test_what_the_image_brings_is_not_installed(checkout, commands, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(install, "check_not_shadowed", lambda *_: None)
    monkeypatch.setenv("T0_PYTHON", make_image(tmp_path / "image"))
    choice = choose("--system-tensorflow", checkout=checkout, root=tmp_path)
    install.install(choice, checkout)
    text = commands[0][1]
    whole = (checkout / choice.locks[0]).read_text(encoding="utf-8")
    assert "\ntensorflow==" in whole and "\ntensorflow==" not in text
    assert "\nkeras==" in whole and "\nkeras==" not in text
    # The image's numpy is not that of the lock, and its release does not hang on TensorFlow's.
    assert "\nnumpy==" in text and "\ntensorflow-text==" in text
    besides = (checkout / install.TPU_LOCK).read_text(encoding="utf-8")
    assert text.count("==") == whole.count("==") - 2 + besides.count("==")
    out = capsys.readouterr().out
    assert f"standing on tensorflow 2.15.1 of Python {HERE}" in out
    assert "taken from there: keras 2.15.0, tensorflow 2.15.1" in out


def test_tensorflow_that_is_shadowed_is_seen(tmp_path):
    python = make_image(tmp_path / "image")
    found = system_tensorflow.look(python)
    install.check_not_shadowed(python, found)
    shadow = tmp_path / "image" / "lib" / f"python{HERE}" / "site-packages" / "tensorflow"
    shadow.mkdir()
    (shadow / "__init__.py").touch()
    with pytest.raises(UserError, match="imports TensorFlow from .*site-packages"):
        install.check_not_shadowed(python, found)


def test_a_tpu_vm_stands_on_its_image(checkout, machine, tmp_path, monkeypatch):
    monkeypatch.setenv("T0_PYTHON", make_image(tmp_path / "image"))
    found = choose(checkout=checkout, root=machine).tensorflow
    assert found.taken == {"tensorflow": "2.15.1", "keras": "2.15.0"}
    assert choose("--locked-tensorflow", checkout=checkout, root=machine).tensorflow is None
    assert choose(checkout=checkout, root=tmp_path).tensorflow is None  # no chips


def test_a_tpu_vm_without_tensorflow(checkout, commands, machine, tmp_path, monkeypatch, capsys):
    python = make_image(tmp_path / "image", name="jax")
    monkeypatch.setenv("T0_PYTHON", python)
    install.install(choose(checkout=checkout, root=machine), checkout)
    assert "no TensorFlow that drives them" in capsys.readouterr().out
    with pytest.raises(UserError, match="found no TensorFlow for .*-2.15.1-se"):
        choose("--system-tensorflow", checkout=checkout, root=machine)


def test_a_tpu_vm_with_another_tensorflow_is_refused(checkout, machine, tmp_path, monkeypatch):
    monkeypatch.setenv("T0_PYTHON", make_image(tmp_path / "image", version="2.18.0"))
    with pytest.raises(UserError, match="2.18.0 .*wanted is tensorflow 2.15.1.*--locked-tensor"):
        choose(checkout=checkout, root=machine)


def test_packages_of_the_user_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "image" / "dist-packages"))
    make_image(tmp_path / "image")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    assert system_tensorflow.look(str(bare / "bin" / "python")) is None
    assert system_tensorflow.look("/nowhere/python") is None


def test_an_image_that_works(tmp_path):
    found = system_tensorflow.look(make_image(tmp_path / "image"))
    assert system_tensorflow.fault(found, tpu=True, environment={}) is None
    local = system_tensorflow.look(make_image(tmp_path / "local", version="2.15.1+tpu"))
    assert system_tensorflow.fault(local, tpu=True, environment={}) is None


@pytest.mark.parametrize(
    ("image", "variables", "got"),
    [
        ({"version": "2.15.0"}, {}, "found tensorflow 2.15.0 of"),
        ({"version": "2.15.1rc0"}, {}, "found tensorflow 2.15.1rc0 of"),
        ({"version": "2.16.1"}, {}, "found tensorflow 2.16.1 of"),
        ({"name": "tf-nightly"}, {}, "found tf-nightly 2.15.1 of"),
        ({"name": "tensorflow-tpu", "version": "2.18.0"}, {}, "drives TPUs by PJRT alone"),
        ({}, {"NEXT_PLUGGABLE_DEVICE_USE_C_API": "true"}, "NEXT_PLUGGABLE_DEVICE_USE_C_API set"),
        ({}, {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "/lib/libtpu.so"}, "by PJRT, with which"),
        ({"library": b"TensorFlow of the package index"}, {}, "built without TPUs"),
        ({"library": b""}, {}, "built without TPUs"),
    ],
)
def test_an_image_that_cannot_work_is_refused_in_one_line(tmp_path, image, variables, got):
    (tmp_path / "tensorflow").mkdir()
    library = tmp_path / "tensorflow" / tpu_image.LIBRARIES[0]
    library.write_bytes(image.pop("library", STREAM_EXECUTOR))
    facts = {"name": "tensorflow", "version": "2.15.1", "folder": str(tmp_path), **image}
    found = SystemTensorflow("/usr/bin/python3", "3.10.12", **facts)
    message = system_tensorflow.fault(found, tpu=True, environment=variables)
    assert got in message and "wanted is" in message and "\n" not in message
    assert tpu_image.IMAGE in message and tpu_image.POD_IMAGE in message


def test_python_of_the_image():
    old = SystemTensorflow("/usr/bin/python3", "3.9.2", "tensorflow", "2.15.1", "/usr/dist")
    assert "wanted is Python 3.10 or 3.11" in system_tensorflow.fault(
        old, tpu=False, environment={}
    )


def test_off_tpus_any_build_will_do(tmp_path):
    found = system_tensorflow.look(make_image(tmp_path / "image", library=b"GPU"))
    off = {"NEXT_PLUGGABLE_DEVICE_USE_C_API": "false", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": ""}
    assert system_tensorflow.fault(found, tpu=False, environment=off) is None


def test_nothing_that_has_to_be_installed_is_imported():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import t0.cli.install\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(names - set(sys.stdlib_module_names) - {'t0', '__main__'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
