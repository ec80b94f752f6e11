"""What every test gets: no network, no settings of the caller's, registries as they were.

The default run leaves out what is marked slow, exhaustive, gpu, tpu or network; `-m` overrides it.
"""

import collections
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Set before NumPy is imported: for small products OpenBLAS would keep other cores busy, waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# As `t0.compat` does for every command, whichever test file imports TensorFlow first: on processors
# with AVX2 alone TensorFlow leaves oneDNN off, which rounds otherwise.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

ROOT = Path(__file__).resolve().parents[1]
CONFINED = ROOT / "tests" / "helpers" / "confined"
DEFAULT_MARKS = "not slow and not exhaustive and not gpu and not tpu and not network"

LONG_SECONDS = 20

# A loaded machine is no fault of what is tested.
hypothesis.settings.register_profile("t0", deadline=None)
hypothesis.settings.load_profile("t0")

sys.path.insert(0, str(ROOT))
from t0 import testing  # noqa: E402
from tests.helpers import processes  # noqa: E402
from tests.helpers.buckets.object_store import Bucket  # noqa: E402
from tests.helpers.buckets.served_buckets import FAST, served_buckets  # noqa: E402
from tests.helpers.confined import confinement  # noqa: E402

pytest_plugins = ["tests.helpers.forked_groups"]
_OFFLINE_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "NO_GCE_CHECK": "true",
    **FAST,
    "PYTHONPATH": os.pathsep.join(filter(None, (str(CONFINED), os.environ.get("PYTHONPATH", "")))),
    **confinement.PROXIES,
}
# TensorFlow reads some when it is imported: by the conftest of a folder that is tested alone, that
# is before `pytest_configure`.
os.environ.update(_OFFLINE_VARIABLES)
_HOME = os.environ["HOME"]
_CALLERS_SETTINGS = ("T0_DATA_DIR", "T0_VOCAB", "TPU_NAME", "HF_TOKEN")


def pytest_configure(config):
    """Sets marks, environment and the block before anything is collected, thus imported."""
    default = not config.option.markexpr
    if default:
        config.option.markexpr = DEFAULT_MARKS
    for name in _CALLERS_SETTINGS:
        os.environ.pop(name, None)
    config.t0_folder = tempfile.mkdtemp(prefix="t0_tests_")
    os.environ["HF_HOME"] = f"{config.t0_folder}/huggingface"
    os.environ["HOME"] = config.t0_folder  # Matplotlib and Beam keep files there
    os.environ[confinement.NOTES] = f"{config.t0_folder}/notes"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if default:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    confinement.confine()


def pytest_collection_finish(session):
    """Lets garbage be collected rarely: a graph is many objects, which are all in use."""
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_terminal_summary(terminalreporter):
    """Lists the tests that took long."""
    seconds = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if type(report) is pytest.TestReport:  # subtests are part of their test
                seconds[report.nodeid] += report.duration
    for name, count in seconds.most_common():
        if count > LONG_SECONDS:
            terminalreporter.write_line(
                f"needs longer than {LONG_SECONDS} s: {name} ({count:.0f} s)"
            )


def pytest_unconfigure(config):
    shutil.rmtree(config.t0_folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def leaves_nothing(request, same_environment):
    """Fails a test that used the network, wrote elsewhere or left a process, in any process."""
    if request.node.get_closest_marker("network"):
        confinement.allow(True)
        for name in _OFFLINE_VARIABLES:
            os.environ.pop(name, None)
        os.environ["HOME"] = _HOME
    before, notes = processes.running(), os.environ[confinement.NOTES]
    yield
    confinement.allow(False)
    left = processes.end_new(before, f"{confinement.NOTES}={notes}")
    forbidden = confinement.take_notes(notes) + [f"left running: {line}" for line in left]
    assert not forbidden, f"{request.node.nodeid} {'; '.join(forbidden)}"


@pytest.fixture(autouse=True)
def same_environment():
    """Gives every test the same environment variables, whatever the one before has set."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_global_seed():
    """Forgets TensorFlow's global seed, from which SeqIO derives the seeds of preprocessors.

    Mesh TensorFlow's perplexity evaluation sets it. A cache that a later test makes in the same
    process would differ from one that a process of its own makes.
    """
    yield
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(None)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of dataset copies and facts that stands beside some checkouts: ../shared."""
    path = ROOT.parent / "shared"
    if not (path / "data").is_dir():
        pytest.skip(f"needs the dataset copies in {path}, which are not part of this project")
    return path


@pytest.fixture(scope="session")
def bucket_server():
    """The process that answers for Google's buckets; tests take `bucket`."""
    with served_buckets({}) as server:
        yield server


@pytest.fixture
def bucket(bucket_server):
    """An empty bucket gs://b, to which this process's gs:// leads, and its children's.

    A file that a failed write left open is sent when it is collected: where nothing answered any
    more, TensorFlow would try again for ten minutes.
    """
    bucket_server.reset({"b": Bucket()})
    os.environ.update(bucket_server.environment())
    yield bucket_server
    bucket_server.reset({"b": Bucket()})
    gc.collect(1)


@pytest.fixture
def clean_registries():
    """Takes back what a test registers with SeqIO."""
    with testing.registries_restored():
        yield


@pytest.fixture
def empty_gin():
    """Starts and ends a test without gin bindings, which are global."""
    with testing.gin_restored():
        yield


@pytest.fixture(params=["compiled", "plain"])
def either_way(request, monkeypatch):
    """XLA compiles all functions that it may compile, or none."""
    from t0.mesh import fused  # TensorFlow takes seconds

    monkeypatch.setattr(fused, "WORTH_COMPILING", 0 if request.param == "compiled" else 1e9)
