"""The toy tasks, registered once, in a folder of their own; and the commands run over them."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("toy_caching")


@pytest.fixture(scope="session")
def toy(toy_folder):
    """The module of toy tasks, imported after its folder is made."""
    from t0 import compat

    compat.apply("seqio")
    os.environ["TOY_CACHING"] = str(toy_folder)
    # The module wants its vocabulary on import only when a task is used, so it can make it.
    from tests.caching import toy_caching_tasks

    toy_caching_tasks.lay_out(toy_folder)
    return toy_caching_tasks


@pytest.fixture(scope="session")
def prompted(toy, toy_folder):
    """The module of prompted tasks, imported after their data is written."""
    from tests.caching import toy_prompted_tasks

    toy_prompted_tasks.lay_out(toy_folder)
    return toy_prompted_tasks


@pytest.fixture
def with_data(prompted, toy_folder, monkeypatch):
    """Names the data folder and the vocabulary of the prompted tasks."""
    monkeypatch.setenv("T0_DATA_DIR", str(toy_folder / "data"))
    monkeypatch.setenv("T0_VOCAB", str(toy_folder / "toy.model"))
    monkeypatch.setenv("TOY_CACHING", str(toy_folder))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return toy_folder / "data"


@pytest.fixture
def command_environment(toy, prompted, toy_folder):
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "TOY_CACHING": str(toy_folder),
        "T0_DATA_DIR": str(toy_folder / "data"),
        "T0_VOCAB": str(toy_folder / "toy.model"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


@pytest.fixture
def start_command(command_environment):
    """Starts seqio_cache_tasks over the toy tasks; returns the process."""

    def start(out, *arguments, module="tests.caching.toy_caching_tasks"):
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "t0.cli.cache_tasks", f"--output_cache_dir={out}"),
                f"--module_import={module}",
                *arguments,
            ],
            env=command_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )

    return start


@pytest.fixture
def run_command(start_command):
    """Runs seqio_cache_tasks over the toy tasks; returns (exit status, stdout, stderr)."""

    def run(out, *arguments, **options):
        process = start_command(out, *arguments, **options)
        stdout, stderr = process.communicate(timeout=300)
        return process.returncode, stdout, stderr

    return run


@pytest.fixture
def cache_here(toy, monkeypatch):
    """Caches in this process, with SeqIO's list of cache folders as it was before."""
    import seqio

    from t0.caching import CacheSelection, RecordOptions, Setup, cache

    def run(out, *tasks, options=None, workers=0, pipeline_options=(), file=None, **request):
        monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
        return cache(
            CacheSelection(str(out), tasks=tasks, **request),
            options or RecordOptions(),
            Setup(
                module_import=[
                    "tests.caching.toy_caching_tasks",
                    "tests.caching.toy_prompted_tasks",
                ]
            ),
            num_workers=workers,
            pipeline_options=pipeline_options,
            file=file or io.StringIO(),
        )

    return run
