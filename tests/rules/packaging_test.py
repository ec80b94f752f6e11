"""What is installed and what the wheel holds. The wheel itself is built and used by .ci/run."""

import ast
import importlib.metadata
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import t0
from t0.cli.doctor import COMMANDS, PACKAGES, command
from t0.cli.system_tensorflow import RELEASES
from t0.errors import install_command

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sysconfig.get_path("scripts")


LOCKS = {"3.11": "requirements.lock", "3.10": "requirements-3.10.lock"}
TPU_LOCK = "requirements-tpu.lock"
TORCH_LOCK = "requirements-torch.lock"
HF_LOCKS = {"3.11": "requirements-hf.lock", "3.10": "requirements-hf-3.10.lock"}
DOCS_LOCK = "docs/requirements.lock"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def _lock(python=HERE):
    return _pins(LOCKS[python])


def _pins(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def _required(python=HERE, extra=None):
    """What setup.py requires on a Python, without extras; or what an extra adds."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", given.update)
        patch.setattr("sys.argv", ["setup.py"])
        runpy.run_path(str(ROOT / "setup.py"))
    texts = given["extras_require"][extra] if extra else given["install_requires"]
    needed = [Requirement(text) for text in texts]
    return [r for r in needed if not r.marker or r.marker.evaluate({"python_version": python})]


@pytest.mark.parametrize("name", COMMANDS)
def test_installed_commands_run_our_modules(name):
    assert command(name, path=SCRIPTS)["module"] == COMMANDS[name]


def test_entry_points_load_the_commands():
    ours = importlib.metadata.distribution("t0").entry_points.select(group="console_scripts")
    assert {point.name: point.module for point in ours} == COMMANDS
    for point in ours:
        assert callable(point.load()), point


def test_entry_points_of_seqio_and_t5_have_the_same_names():
    # The reason for the tests above. Once this fails, being installed last no longer matters.
    points = importlib.metadata.entry_points(group="console_scripts")
    owners = {(point.name, point.dist.name) for point in points}
    assert ("seqio_cache_tasks", "seqio") in owners
    assert ("t5_mesh_transformer", "t5") in owners


def test_package_version():
    assert importlib.metadata.version("t0") == t0.__version__


def test_release_files_have_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == t0.__version__
    heading = f"\n## {t0.__version__} ({citation['date-released']})\n"
    assert heading in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("python", LOCKS)
def test_dependencies_are_pinned_as_in_the_lock_file(python):
    lock = _lock(python)
    base = {canonicalize_name(r.name): str(r.specifier) for r in _required(python)}
    assert all(re.fullmatch(r"==[^,*]+", pin) for pin in base.values()), base
    # SeqIO's nightly stands for it, because T5 requires that by name.
    assert "seqio" not in base
    assert "promptsource" not in base
    missing = lock.keys() - base.keys() - {"seqio", "promptsource"}
    of_tests = {"coverage", "pytest", "hypothesis", "ruff"}
    of_tests |= {"iniconfig", "pluggy", "sortedcontainers"}
    assert missing == of_tests
    assert all(base[name] == f"=={lock[name]}" for name in lock.keys() & base.keys())
    assert not [name for name in base if name.startswith(("torch", "nvidia", "triton"))]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason=".ci/run compares on Python 3.11")
def test_hugging_face_comparison_has_versions_of_plain_pip():
    compared = _pins(".ci/transformers.lock")
    shared = {r.name: str(r.specifier) for r in _required() if r.name in compared}
    assert shared.keys() >= {"transformers", "tokenizers"}
    assert all(pin == f"=={compared[name]}" for name, pin in shared.items())
    assert not compared.keys() & _lock().keys()


@pytest.mark.parametrize("python", LOCKS)
def test_lock_file_versions_satisfy_the_doctor(python):
    lock = _lock(python)
    for name, wanted in PACKAGES.items():
        assert SpecifierSet(wanted).contains(lock[name]), name


def test_lock_file_has_what_its_packages_require():
    lock = _lock()
    left_out = runpy.run_path(str(ROOT / ".ci" / "make_locks.py"))["LEFT_OUT"]
    missing = {
        f"{name} requires {text}"
        for name in lock
        for text in importlib.metadata.requires(name) or ()
        if (required := Requirement(text)).marker is None or required.marker.evaluate({"extra": ""})
        if canonicalize_name(required.name) not in lock.keys() | {*left_out}
    }
    assert not missing, "make locks"


@pytest.mark.parametrize(
    "lock", [*LOCKS.values(), TPU_LOCK, TORCH_LOCK, *HF_LOCKS.values(), DOCS_LOCK]
)
def test_lock_file_packages_all_have_a_hash(lock):
    # bin/setup installs with --require-hashes, which refuses a package without one.
    text = (ROOT / lock).read_text(encoding="utf-8")
    hashed = re.findall(
        r"^([a-z0-9-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE
    )
    assert sorted(hashed) == sorted(_pins(lock))


@pytest.mark.parametrize(
    ("source", "lock"),
    [
        *(("requirements.in", lock) for lock in LOCKS.values()),
        ("requirements-tpu.in", TPU_LOCK),
        ("docs/requirements.in", DOCS_LOCK),
    ],
)
def test_lock_file_satisfies_its_requirements_file(source, lock):
    lines = (ROOT / source).read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(text) for line in lines if (text := line.partition("#")[0].strip())]
    pins = _pins(lock)
    assert wanted and all(r.specifier.contains(pins.get(r.name, "")) for r in wanted), "make locks"


# Imported by their names or by other packages, data, pinned for TensorFlow 2.15, tools, extras.
_NOT_IMPORTED = {
    *("importlib-resources", "packaging", "promptsource", "setuptools", "tensorflow-metadata"),
    *("tensorflow-text", "coverage", "hypothesis", "pytest", "ruff", "torch", "transformers"),
    *("bitsandbytes", "mlflow", "trackio", "wandb"),
}


def test_requirements_equal_the_imports_of_the_package():
    imported = set()
    for path in [*(ROOT / "t0").rglob("*.py"), *(ROOT / "seqio_tasks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    # Python 3.10 does not find the owner of a wheel without top_level.txt.
    owners = {"sklearn": ["scikit-learn"], **importlib.metadata.packages_distributions()}
    google = {
        "google.api_core": "google-api-core",
        "google.auth": "google-auth",
        "google.cloud.storage": "google-cloud-storage",
        "google.oauth2": "google-auth",
        "google.protobuf": "protobuf",
    }
    names = {name for module, name in google.items() if module in imported}
    for module in {name.partition(".")[0] for name in imported} - {"google", "t0", "seqio_tasks"}:
        if module not in sys.stdlib_module_names:
            names.add(canonicalize_name(owners[module][0] if module in owners else module))
    lines = (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    listed = {Requirement(text).name for line in lines if (text := line.partition("#")[0].strip())}
    assert (names ^ listed) - _NOT_IMPORTED == set()


@pytest.mark.parametrize("python", LOCKS)
def test_tpu_extra_adds_its_lock_file_and_changes_no_other(python):
    pins = _pins(TPU_LOCK)
    assert {r.name: str(r.specifier) for r in _required(python, "tpu")} == {
        name: f"=={version}" for name, version in pins.items()
    }
    assert not pins.keys() & _lock(python).keys()


@pytest.mark.parametrize("python", LOCKS)
def test_pytorch_extra_is_only_pytorch(python):
    compared = _pins(".ci/transformers.lock")
    (needed,) = _required(python, "torch")
    assert (needed.name, str(needed.specifier)) == ("torch", f"=={compared['torch']}")


@pytest.mark.parametrize("python", LOCKS)
def test_quantized_extra_is_pytorch_and_bitsandbytes(python):
    (torch,) = _required(python, "torch")
    needed = {r.name: str(r.specifier) for r in _required(python, "quantized")}
    assert needed.pop("torch") == str(torch.specifier)
    ((name, pin),) = needed.items()
    assert f"\n{name}={name}{pin} " in (ROOT / "bin" / "setup").read_text()


@pytest.mark.parametrize("python", LOCKS)
def test_pytorch_lock_file_omits_pytorch_and_changes_no_other(python):
    pins, lines = _pins(TORCH_LOCK), (ROOT / "requirements-torch.in").read_text().splitlines()
    assert pins and "torch" not in pins and not pins.keys() & _lock(python).keys()
    (needed,) = _required(python, "torch")
    assert f"{needed.name}{needed.specifier}" in [line.partition("#")[0].strip() for line in lines]


@pytest.mark.parametrize("python", LOCKS)
def test_hugging_face_lock_file_changes_no_other(python):
    pins, others = _pins(HF_LOCKS[python]), _pins(TORCH_LOCK) | _lock(python)
    assert "transformers" in pins and not pins.keys() & others.keys()
    needed = {r.name: str(r.specifier) for r in _required(python, "hf")}
    assert needed == {name: f"=={pin}" for name, pin in (pins | {"torch": "2.13.0"}).items()}
    assert f"\ntorch=torch{needed['torch']} " in (ROOT / "bin" / "setup").read_text()


def test_missing_package_message_has_the_install_command(monkeypatch):
    taken = re.search(r"choose from (.*)\"", (ROOT / "bin" / "setup").read_text())[1].split(", ")
    assert taken == ["torch", "hf", "quantized", "tpu"]
    assert [install_command(extra) for extra in taken] == [f"bin/setup --with {e}" for e in taken]
    monkeypatch.setattr("t0.errors.is_checkout", lambda: False)
    assert install_command("hf").startswith("python -m pip install 't0[hf]' && ")
    assert install_command("hf").endswith(" install --no-deps --force-reinstall t0")


def test_extras_are_not_installed_over_our_commands():
    texts = [*ROOT.glob("t0/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    wrong = [p for p in texts if re.search(r"install '?t0\[\w", p.read_text(encoding="utf-8"))]
    assert not [path for path in wrong if path.name != "errors.py"]


def test_installed_versions_equal_the_lock_file():
    wrong = {n: v for n, v in _lock().items() if importlib.metadata.version(n) != v}
    path_file = Path(sysconfig.get_path("purelib")) / "t0_system_tensorflow.pth"
    if path_file.exists():  # on an image's TensorFlow
        wrong = {n: v for n, v in wrong.items() if n not in RELEASES}
    assert not wrong, f"run bin/setup: {wrong}"


def test_wheel_holds_every_module_and_data_file(tmp_path):
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    wanted = {
        str(path.relative_to(ROOT))
        for top in ("t0", "seqio_tasks")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"t0/{path.relative_to(ROOT)}" for path in (ROOT / "gin").rglob("*.gin")}
    assert built == wanted
    assert "t0/sources/facts/splits.json" in built
    assert "t0/catalogue/datasets.csv" in built
