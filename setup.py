"""Packaging: the wheel's contents, its pinned dependencies and its three console commands.

Dependencies are the pins of `requirements.lock` (Python 3.11) and `requirements-3.10.lock`, so that
pip has nothing to search. `bin/setup` lets uv install a lock with `--no-deps`. Plain
`pip install .` resolves dependencies instead, and then T5's own metadata forces a few packages that
the locks leave out (`NIGHTLY` and `FORCED`).

promptsource 0.1.0 is in the locks, which uv installs, but declares Python 3.7, so pip would refuse
the wheel's dependencies if they named it:

    pip install --no-deps --ignore-requires-python promptsource==0.1.0
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LOCKS = {"3.11": "requirements.lock", "3.10": "requirements-3.10.lock"}
HF_LOCKS = {"3.11": "requirements-hf.lock", "3.10": "requirements-hf-3.10.lock"}
TPU_LOCK = "requirements-tpu.lock"
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s\\]+)", re.MULTILINE)

# T5 requires the nightly builds by name, and seqio-nightly pins its tfds-nightly exactly. A nightly
# and its release install the same files: seqio is replaced by its nightly, which differs little;
# tensorflow-datasets stays, because mesh-tensorflow requires it, and overwrites its nightly.
NIGHTLY = {"seqio": "seqio-nightly==0.0.18.dev20250227"}
# T5 also requires transformers, for a PyTorch model never used here. SeqIO's nightly requires this.
FORCED = ("tfds-nightly==4.9.2.dev202308090034",)
# As in .ci/transformers.lock, which is not in a source distribution; a test compares them.
TORCH = "torch==2.13.0"
BITSANDBYTES = "bitsandbytes==0.50.2"
TEST_TOOLS = ("coverage", "hypothesis", "pytest", "ruff")
# The test tools, their own dependencies, and a package that pip refuses.
LEFT_OUT = (*TEST_TOOLS, "iniconfig", "pluggy", "sortedcontainers", "promptsource")


def version() -> str:
    """Returns the version written in t0/__init__.py, read as text: importing could fail here."""
    text = (ROOT / "t0" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


def pins(lock: str) -> dict[str, str]:
    """Returns the pins of a lock by package name, without their hashes."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {name: f"{name}=={version}" for name, version in _PIN.findall(text)}


def for_each_python(names: Iterable[str], files: dict[str, str] = LOCKS) -> list[str]:
    """Returns the pins of packages, with a marker if the locks of the Pythons differ."""
    locks = {python: pins(lock) for python, lock in files.items()}
    lines = []
    for name in names:
        pin_by_python = {python: lock[name] for python, lock in locks.items() if name in lock}
        pin_by_python = {python: NIGHTLY.get(name, pin) for python, pin in pin_by_python.items()}
        if len(pin_by_python) == len(locks) and len(set(pin_by_python.values())) == 1:
            lines += set(pin_by_python.values())
        else:
            lines += [
                f'{pin} ; python_version == "{python}"' for python, pin in pin_by_python.items()
            ]
    return lines


def dependencies() -> list[str]:
    """Returns `install_requires`: the locks without `LEFT_OUT`, with T5's nightly builds."""
    names = sorted(set().union(*map(pins, LOCKS.values())).difference(LEFT_OUT))
    return [*for_each_python(names), *transformers(), *FORCED]


def transformers() -> list[str]:
    """Returns the pins of transformers and its dependencies, without PyTorch."""
    return for_each_python(sorted(set().union(*map(pins, HF_LOCKS.values()))), HF_LOCKS)


class BuildWithGin(build_py):
    """Copies the top-level folder gin/ into the build as t0/gin."""

    def run(self) -> None:
        """Builds, then copies; an editable install reads the top-level gin/ itself."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._gin_files().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Returns the built files, including those under t0/gin."""
        outputs = super().get_outputs(include_bytecode)
        return (
            outputs
            if self.editable_mode
            else outputs + [str(p) for p in self._gin_files().values()]
        )

    def _gin_files(self) -> dict[Path, Path]:
        built = Path(self.build_lib) / "t0" / "gin"
        return {path: built / path.relative_to(ROOT / "gin") for path in ROOT.glob("gin/**/*.gin")}


setup(
    name="t0",
    version=version(),
    description="T0 on Mesh TensorFlow: prompts to tasks, caches, models and rankings",
    license="Apache-2.0",
    python_requires=">=3.10,<3.12",
    packages=find_packages(include=["t0", "t0.*", "seqio_tasks", "seqio_tasks.*"]),
    package_data={
        "t0.caching": ["*.csv"],
        "t0.catalogue": ["*.csv"],
        "t0.sources": ["facts/*.json", "facts/*.csv"],
        "t0.reports": ["*.j2", "*.js", "*.css", "*.csv"],
    },
    cmdclass={"build_py": BuildWithGin},
    install_requires=dependencies(),
    extras_require={
        "gcp": [f"apache-beam[gcp]{pins(LOCKS['3.11'])['apache-beam'][11:]}"],
        # Compares converted checkpoints with `transformers`; converting itself does not need it.
        "hf": [TORCH, *transformers()],
        # The PyTorch engine, in the release that the tests compare with.
        "torch": [TORCH],
        # Quantizes the frozen weights of adapters; it needs nothing else that PyTorch does not.
        "quantized": [TORCH, BITSANDBYTES],
        # The client with which TensorFlow asks the TPU API, for `--tpu=NAME`.
        "tpu": [*pins(TPU_LOCK).values()],
        # An extra of the original; its packages are in `install_requires` here.
        "seqio_tasks": [],
        "test": for_each_python(TEST_TOOLS),
    },
    entry_points={
        "console_scripts": [
            "seqio_cache_tasks = t0.cli.cache_tasks:console_entry_point",
            "t5_mesh_transformer = t0.cli.mesh_transformer:console_entry_point",
            "t0 = t0.cli.main:main",
        ]
    },
)
