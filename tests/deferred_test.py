"""Deferred modules run at their first use, once, and are then what an import would have made."""

import copy
import importlib
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping

import pytest

from t0 import compat, deferred


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package `late`; those named are deferred, and note when they run."""

    def write(modules, deferred_modules, looked_up=()):
        for name, source in modules.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"import sys\nsys.ran.append(__name__)\n{textwrap.dedent(source)}")
        deferred.defer(dict.fromkeys(deferred_modules, looked_up))
        return sys.ran

    monkeypatch.setattr(sys, "ran", [], raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "late"]:
        del sys.modules[name]


def test_a_module_runs_at_its_first_use_and_once(package):
    ran = package({"late.py": "value = 3"}, ["late"])
    import late

    assert ran == []
    assert (late.__name__, late.__file__[-7:]) == ("late", "late.py")
    assert ran == []
    assert late.value == 3
    assert late.value == 3
    assert ran == ["late"]
    assert type(late) is type(sys)


def test_names_taken_from_a_module_run_it(package):
    ran = package({"late.py": "value = 3"}, ["late"])
    from late import value

    assert (value, ran) == (3, ["late"])


def test_a_package_runs_before_its_modules(package):
    files = {"late/__init__.py": "ready = True", "late/far.py": "from late import ready"}
    ran = package(files, ["late", "late.far"])
    import late.far

    assert late.far.ready
    assert ran == ["late", "late.far"]


def test_a_module_of_a_deferred_package_that_is_imported_runs_the_package_first(package):
    files = {"late/__init__.py": "from late import near", "late/near.py": "value = object()"}
    ran = package(files, ["late"])
    import late
    import late.near

    assert ran == ["late", "late.near"]
    assert late.near is sys.modules["late.near"]
    assert late.near.__spec__.loader is late.near.__loader__


def test_modules_that_import_each_other_run(package):
    files = {
        "late/__init__.py": "import late.one",
        "late/one.py": "import late.two\nvalue = 1",
        "late/two.py": "import late.one\n\ndef value():\n    return late.one.value",
    }
    ran = package(files, ["late", "late.one", "late.two"])
    import late.two

    assert late.two.value() == 1
    assert ran == ["late", "late.two", "late.one"]


def test_a_function_that_is_only_looked_up_runs_nothing(package):
    ran = package({"late.py": "def twice(x):\n    return 2 * x"}, ["late"], ["twice"])
    import late

    twice = late.twice
    assert hasattr(late, "twice")
    assert ran == []
    assert twice(4) == 8
    assert late.twice(5) == 10
    assert ran == ["late"]


BASE_AND_PART = """
class Base:
    limit = 3

class Part(Base):
    pass
"""


def test_a_class_that_is_looked_up_annotates_and_runs_nothing(package):
    ran = package({"late.py": BASE_AND_PART}, ["late"], ["Base"])
    from late import Base

    def count(bases: Mapping[str, Base], one: Base | None = None) -> int:
        return len(bases) + bool(one)

    assert count({}) == 0
    assert ran == []
    assert Base.limit == 3
    assert ran == ["late"]


def test_a_class_that_is_looked_up_can_be_used_as_one(package):
    ran = package({"late.py": BASE_AND_PART}, ["late"], ["Base"])
    from late import Base

    class Ours(Base):
        pass

    import late

    assert ran == ["late"]
    assert Ours.__bases__ == (late.Base,)
    assert isinstance(Ours(), Base)
    assert isinstance(late.Part(), Base)
    assert issubclass(Ours, Base)
    assert not isinstance(3, Base)
    assert type(Base()) is late.Base
    assert Base.__name__ == "Base"


def test_a_copy_of_what_is_looked_up_is_the_class_itself(package):
    package({"late.py": BASE_AND_PART}, ["late"], ["Base"])
    import late
    from late import Base

    copies = [pickle.loads(pickle.dumps(Base)), copy.deepcopy(Base)]
    assert all(one is late.Base for one in copies)


def test_a_missing_module_fails_where_it_is_imported(package):
    package({}, ["late"])
    with pytest.raises(ModuleNotFoundError, match="late"):
        import late  # noqa: F401


def test_a_module_that_fails_does_so_at_each_use(package):
    ran = package({"late.py": "half = 1\nraise ImportError('no library')"}, ["late"])
    import late

    for _ in range(2):
        with pytest.raises(ImportError, match="no library"):
            late.half  # noqa: B018
    assert ran == ["late", "late"]


def test_a_second_thread_waits_until_the_module_has_run(package):
    source = """
        sys.halfway.set()
        sys.go_on.wait(10)
        value = 3
        """
    package({"late.py": source}, ["late"])
    sys.halfway, sys.go_on = threading.Event(), threading.Event()
    import late

    found = []
    threads = [threading.Thread(target=lambda: found.append(late.value)) for _ in range(3)]
    threads[0].start()
    sys.halfway.wait(10)
    for thread in threads[1:]:
        thread.start()
    assert found == []
    sys.go_on.set()
    for thread in threads:
        thread.join()
    assert found == [3, 3, 3]
    assert sys.ran == ["late"]


# In a process of its own: here other tests have used the modules.
def printed(program):
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_importing_t5_and_ours_runs_no_deferred_module():
    program = """
import sys
from t0 import compat
from t0.compat import mesh_utils
import t0.run.configure, t0.tasks
print(*(name for name in compat.DEFERRED if type(sys.modules.get(name)) is type(sys)))
print(*(name for name in ("jax", "flax", "keras.src.backend") if name in sys.modules))
"""
    assert printed(program) == ["", ""]


def test_what_is_deferred_works_when_it_is_used():
    program = """
from t0.compat import t5_metrics as metrics, tf
values = [
    metrics.rouge(["a b"], ["a b"])["rouge1"],
    metrics.bleu(["a b c d"], ["a b c d"])["bleu"],
    metrics.pearson_corrcoef([1, 2, 3], [2, 4, 6])["pearson_corrcoef"],
    metrics.mean_multiclass_f1(2)([0, 1], [0, 1])["mean_2class_f1"],
]
print([round(value) for value in values])
print(metrics.sklearn_metrics_wrapper("matthews_corrcoef")([0, 1], [0, 1]))
print(tf.keras.layers.Dense(2)(tf.ones([1, 3])).shape)
import pandas, pyglove, requests, tensorflow_hub, tensorflow_text
print(len(pandas.DataFrame({"a": [1]})), pyglove.hyper.HyperPrimitive.__name__, requests.get)
print(tensorflow_text.keras.layers.__name__, tensorflow_hub.load)
from t0.compat import seqio
import clu.metrics
print(issubclass(seqio.metrics.Metric, clu.metrics.Metric), seqio.Evaluator.evaluate.__name__)
print(tf.lite.TFLiteConverter.__name__, tf.estimator.DNNClassifier.__name__)
"""
    lines = printed(program)
    assert lines[:3] == ["[100, 100, 100, 100]", "{'matthews_corrcoef': 1.0}", "(1, 2)"]
    assert lines[3].startswith("1 HyperPrimitive <function get")
    assert lines[4].startswith("tensorflow_text.python.keras.layers <function load")
    assert lines[5:] == ["True evaluate", "TFLiteConverterV2 DNNClassifierV2"]


def test_what_is_looked_up_is_of_deferred_modules():
    assert set(compat._LOOKED_UP) <= set(compat.DEFERRED)
    for module, names in compat._LOOKED_UP.items():
        found = importlib.import_module(module)
        assert all(hasattr(found, name) for name in names), module
