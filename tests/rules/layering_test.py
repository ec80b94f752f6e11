"""The packages import upwards only; and the other rules of the tree that no single file shows."""

import ast
import collections
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The table of packages, in the order the data flows: a package imports itself and the packages
# before it. The last column has stricter rules.
TABLE = dict(
    re.findall(
        r"^\| `(?:t0/)?(\w+)(?:/|\.py)` \|.*\| (.*?) ?\|$",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
# The row of `seqio_tasks/` is also that of `t0/seqio_tasks.py` and `t0/recipes.py`, which import it.
PACKAGES = tuple(
    package
    for row in TABLE
    for package in (("seqio_tasks", "recipes") if row == "seqio_tasks" else (row,))
)
# Reports are made from files alone, and the PyTorch engine from plain data.
ONLY = {
    "reports": {
        *("absent_classes", "config", "errors", "files", "measures", "progress", "reports"),
        "text_tables",
    },
    "torch": {
        *(
            "machine",
            "child_processes",
            "errors",
            "files",
            "config",
            "catalogue",
            "feeding",
            "checkpoints",
            "mesh",
            "training",
        ),
        *("evaluation", "inference", "measures", "torch"),
    },
}
# Packages without any module that imports TensorFlow.
NEVER_TENSORFLOW = tuple(
    name for name, rule in TABLE.items() if re.match("no TensorFlow(?! (in|except) )", rule)
)
HEAVY = ("tensorflow", "tensorflow_datasets", "t5", "seqio", "mesh_tensorflow", "gin")
# Settings that other packages keep for their users, and how a file sets them.
SETTINGS = tuple(
    f"assigns to {setting}"
    for setting in (
        "os.environ[",
        "tempfile.tempdir",
        "flags.FLAGS[name].value",
        "gin_config._LOCATION_PREFIXES[:]",
        "sys.unraisablehook",
    )
)
# Guides, not aims: a file is one idea, mostly 150 to 500 lines, a function mostly under 50. What is
# longer than this hides two ideas.
LONGEST_FILE_LINES = 800
LONGEST_FUNCTION_LINES = 90
# More packages with a file of one name make the name say nothing: there were five plan.py.
MOST_PACKAGES_OF_A_FILE_NAME = 2

SOURCES = sorted([*ROOT.glob("t0/**/*.py"), *ROOT.glob("seqio_tasks/**/*.py")])
ALL_PYTHON = sorted(
    [*SOURCES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("*.py")]
)


def _name(path):
    return str(path.relative_to(ROOT))


@functools.cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def package_of(module):
    """The package of a dotted name: t0.sources.folders -> sources; None outside this project."""
    top, _, rest = module.partition(".")
    if top == "seqio_tasks":
        return "seqio_tasks"
    if top != "t0" or not rest:
        return None
    package = rest.partition(".")[0]
    # `from t0 import __version__` names no package; a folder or module not listed is a mistake.
    known = (
        package in PACKAGES
        or (ROOT / "t0" / package).is_dir()
        or (ROOT / "t0" / f"{package}.py").is_file()
    )
    return package if known else None


@functools.cache
def nodes(tree):
    """Every node of a tree, which seven rules look at."""
    return tuple(ast.walk(tree))


@functools.cache
def imported(tree):
    """Every module a file imports, at the top or within a function, as (line, dotted name)."""
    return tuple(_imported(tree))


def _imported(tree):
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and last_name(node.func) == "import_module":
            yield from ((node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant))


def last_name(function):
    """The name after the last dot of what is called; None for anything else than names."""
    return getattr(function, "attr", None) or getattr(function, "id", None)


def allowed_packages(path):
    """The packages that a file may import."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if module == "t0":
        return set()
    # The entry point of a package's command is a part of the commands.
    package = "cli" if path.name == "__main__.py" else package_of(module)
    assert package in PACKAGES, f"add a row for {package} to the table of docs/architecture.md"
    return ONLY.get(package, set(PACKAGES[: PACKAGES.index(package) + 1]))


def test_layering_packages_import_only_earlier_rooms():
    allowed = {path: allowed_packages(path) | {None} for path in SOURCES}
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for path in SOURCES
        for line, name in imported(_tree(path))
        if package_of(name) not in allowed[path]
    ]
    assert not wrong, "\n".join(wrong)


def test_layering_light_packages_never_import_tensorflow():
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for package in NEVER_TENSORFLOW
        for path in (ROOT / "t0" / package).rglob("*.py")
        for line, name in imported(_tree(path))
        if name.startswith("t0.compat")
    ]
    assert not wrong, "\n".join(wrong)


def test_layering_other_packages_are_imported_through_compat():
    # Imported past them, a package would lack its patches.
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for path in SOURCES
        if path != ROOT / "t0" / "compat.py"
        for line, name in imported(_tree(path))
        if name.partition(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_layering_checker_finds_imports():
    lines = "import t0.mesh.plan\ndef f():\n  from t0 import tasks\n  import_module('t0.cli.x')"
    tree = ast.parse(lines)
    assert {package_of(name) for _, name in imported(tree)} == {"mesh", "tasks", "cli"}
    assert package_of("t0.__version__") is None


def foreign_names(tree):
    """The names of other packages' modules in a file, doors included, and of their parts."""
    names = {"compat"}  # as in compat.mesh_utils
    for node in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "") or ""
            for alias in node.names:
                origin = module or alias.name
                if origin == "t0.compat" or package_of(origin) is None and origin != "t0":
                    names.add(alias.asname or alias.name.partition(".")[0])
    aliases = [node for node in nodes(tree) if isinstance(node, ast.Assign)]
    while found := [
        target.id
        for node in aliases
        if isinstance(node.value, ast.Attribute) and root(node.value) in names
        for target in node.targets
        if isinstance(target, ast.Name) and target.id not in names
    ]:
        names.update(found)
    return names


def root(node):
    """The name that an expression starts from: mtf for mtf.layers.x and getattr(mtf, "x").y."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "vars"):
            node = node.args[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            node = ast.Name("import_module")
        else:
            return None
    return node.id


def changes_of_other_packages(tree):
    """What in a file changes another package's module, as (line, what)."""
    foreign = {*foreign_names(tree), "import_module"}
    for node in nodes(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if getattr(node, "attr", "") == "__code__" or root(node) in foreign:
                yield node.lineno, f"assigns to {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and root(node.func) in ("setattr", "delattr"):
            what = ast.unparse(node)
            yield from [(node.lineno, what)] if root(node.args[0]) in foreign else []
    yield from (
        (line, f"imports {name}")
        for line, name in imported(tree)
        if "mock" in re.split(r"[._]", name)
    )


def test_layering_only_compat_changes_other_packages():
    wrong = [
        f"{_name(path)}:{line} {what}"
        for path in SOURCES
        if path != ROOT / "t0" / "compat.py"
        for line, what in changes_of_other_packages(_tree(path))
        if not what.startswith(SETTINGS)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "from unittest import mock",
        "import unittest.mock",
        "import mock",
        "from t0.compat import mesh_utils\nmesh_utils.decode = print",
        "from t0.compat import tf1 as tf\ndel tf.Print",
        "from t0 import compat\ncompat.mtf.layers.mtf.gelu = print",
        "from t0 import compat\nutils = compat.mesh_utils\nutils.decode = print",
        "import seqio\nseqio.utils.x, y = 1, 2",
        "from absl import flags\nflags.FLAGS: int = 3",
        "from t0.compat import mtf\nfor mtf.x in range(3): pass",
        "from t0.compat import mtf\nvars(mtf)['x'] = 1",
        "from t0.compat import mtf\ndef f():\n  setattr(mtf, 'x', 1)",
        "from t0.compat import mtf\ndelattr(getattr(mtf, 'layers'), 'dense')",
        "from t0.compat import transformer\ntransformer.Bitransformer.decode = print",
        "import importlib\nimportlib.import_module('t5.data.utils').DEFAULT_SPM_PATH = ''",
        "import sys\nsys.modules['x'] = None",
        "def f(published, ours):\n  published.__code__ = ours.__code__",
    ],
)
def test_layering_checker_finds_changes_of_other_packages(line):
    assert list(changes_of_other_packages(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "from t0.compat import mtf\nshape = mtf.Shape([])\nshape.x = 1",
        "from t0 import compat\nwith compat.replaced('mesh_utils.decode', print): pass",
        "from t0.mesh import fused\nfused.x = 1",
        "class A:\n  def f(self):\n    setattr(self, 'x', 1)\n    self.y = 2",
        "counts = {}\ncounts['a'] = 1",
    ],
)
def test_layering_checker_allows_changes_of_own_objects(line):
    assert not list(changes_of_other_packages(ast.parse(line)))


def test_layering_only_the_catalogue_registers_tasks():
    calls = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        if not path.is_relative_to(ROOT / "seqio_tasks")
        and path.parent.name != "testing"  # whose tasks are unregistered again
        # A run's mixtures and few-shot tasks are known after its flags are parsed.
        and path.name not in ("gin_mixtures.py", "few_shot_tasks.py")
        for node in nodes(_tree(path))
        if isinstance(node, ast.Call)
        and last_name(node.func) in ("add", "add_provider")
        and re.search(r"(Task|Mixture)Registry\.add(_provider)?$", ast.unparse(node.func))
    ]
    assert not calls, f"registers outside seqio_tasks: {calls}"


# JSON that is not from a user's or another program's file: what this process has just written
# (`loads(dumps(x))`), and facts in the package.
OWN_JSON = ("sources/schema.py",)


def test_layering_untrusted_json_is_read_by_one_parser():
    places = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        if not _name(path).endswith((*OWN_JSON, "files/untrusted.py"))
        for node in nodes(_tree(path))
        if isinstance(node, ast.Call)
        and last_name(node.func) in ("load", "loads")
        and ast.unparse(node.func) in ("json.load", "json.loads")
        and not ast.unparse(node.args[0]).startswith("json.dumps(")
    ]
    assert not places, f"{places}: t0.files.untrusted.parsed_json has bounds and one error"


def test_style_files_are_short():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_PYTHON}
    long = [f"{_name(path)}: {n} lines" for path, n in lines.items() if n > LONGEST_FILE_LINES]
    assert not long, "\n".join(long)
    assert not [path for path in ALL_PYTHON if path.name == "utils.py"]


def test_style_functions_are_short():
    long = [
        f"{_name(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in ALL_PYTHON
        for node in nodes(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_layering_no_file_name_is_in_three_rooms():
    packages = collections.defaultdict(set)
    for path in (ROOT / "t0").glob("*/**/*.py"):
        packages[path.name].add(path.relative_to(ROOT / "t0").parts[0])
    del packages["__init__.py"]
    many = {
        name: found for name, found in packages.items() if len(found) > MOST_PACKAGES_OF_A_FILE_NAME
    }
    assert not many


def test_layering_module_folders_are_packages():
    folders = {path.parent for path in SOURCES}
    assert not [_name(folder) for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("path", sorted((ROOT / "bin").iterdir()), ids=_name)
def test_layering_bin_scripts_are_thin(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert path.stat().st_mode & 0o111, "not executable"
    assert not re.search(r"python\S*[^\n]*<<", text), "Python belongs into t0/, not a heredoc"


def test_layering_gin_folder_has_only_gin_files():
    others = [p for p in (ROOT / "gin").rglob("*") if p.is_file() and p.suffix != ".gin"]
    assert not others, f"only *.gin files go into the wheel: {others}"


WITHOUT_TENSORFLOW = (
    *(f"t0.{package}" for package in NEVER_TENSORFLOW if package != "torch"),
    *("t0", "t0.errors", "t0.files", "t0.checkpoints", "t0.reports"),
    *("t0.evaluation.merging", "t0.inference.row_predictions"),
    *("t0.cli.main", "t0.cli.doctor", "t0.cli.convert"),
)


def module_of(name):
    """The module of a dotted name: t0.training.loop.Stepping -> t0.training.loop."""
    file = ROOT.joinpath(*name.split("."))
    is_module = file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()
    return name if is_module else module_of(name.rpartition(".")[0])


# What the PyTorch engine, which has no TensorFlow, imports from other packages at the top of a file.
SHARED_WITH_OTHER_ENGINES = tuple(
    sorted(
        {
            module_of(name)
            for path in (ROOT / "t0" / "torch").rglob("*.py")
            for statement in _tree(path).body
            for _, name in imported(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom)
            and package_of(name) not in (None, "torch")
        }
    )
)


@pytest.mark.parametrize(
    "modules", [WITHOUT_TENSORFLOW, SHARED_WITH_OTHER_ENGINES], ids=["ours", "shared"]
)
def test_layering_modules_import_without_tensorflow(modules):
    """In one process: each module takes its turn, and is named if it imports what is heavy."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    found = sorted({{*{HEAVY!r}}} & {{*sys.modules}})\n"
        "    assert not found, f'{name} imports {found}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# Names that Python 3.11 has and 3.10 lacks; the suite runs on 3.11.
NEWER = {
    "tomllib": {"load", "loads"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "assert_never"},
    "datetime": {"UTC"},
    "hashlib": {"file_digest"},
    "enum": {"StrEnum"},
    "contextlib": {"chdir"},
}


def test_python_3_10_is_sufficient():
    found = []
    for path in sorted([*ROOT.glob("t0/**/*.py"), *ROOT.glob("seqio_tasks/*.py")]):
        for node in nodes(_tree(path)):
            used = set()
            if isinstance(node, ast.Import):
                used = {"tomllib"} & {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                used = NEWER.get(node.module, set()) & {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = NEWER.get(node.value.id, set()) & {node.attr}
            found += [f"{path.relative_to(ROOT)}: {name}" for name in used]
    assert not found


# The calls that open or read files in another way than through `t0.files`, where `paths.opened` and
# `any_path.binary` accept only regular files, and `read_bytes`, `read_lines` and `unpacked` have
# limits. Call -> the modules that may use it: they read files of this package or this machine, or
# check the files first (`paths.check_regular`, `paths.check_folder`), or read a file that is open.
# Names of removed modules have no effect.
OTHER_OPENERS = {
    "open": "compat files/paths",
    ".open": (
        "catalogue/entries cli/quickstart files/any_path lm_eval/t0_prompts reports/published "
        "run/tpu_checks training/model_directory"
    ),
    "os.open": "errors files/paths files/publishing",
    "read_text": (
        "caching/split_state cli/doctor cli/quickstart config/parse files/publishing "
        "lm_eval/exported_tasks machine sources/hub sources/schema "
        "cli/torch_run torch/tokenizer_check"
    ),
    "read_bytes": "testing/vocabularies",  # of a model that a test has trained
    "from_pretrained": "torch/model torch/tokenizer_check torch/pretrained_folder",
    "safe_open": "checkpoints/torch_shards",
    "tensorstore.open": "checkpoints/t5x",
    "torch.load": "checkpoints/weight_files",
    "np.load": "overlap/index training/resume_file",
    "np.fromfile": "",
    "np.memmap": "",
    "mmap.mmap": "run/tpu_checks evaluation/records",
    "gzip.open": "",
    "GzipFile": "files/any_path",
    "ZipFile": "checkpoints/weight_files cli/quickstart training/resume_file",
    "memory_map": "sources/arrow_readers",
    "ParquetFile": "sources/arrow_readers",
    "read_table": "",
    "GFile": "files/paths tasks/vocabulary",
    "TFRecordDataset": "feeding/batch_stream",
    "TextLineDataset": "feeding/uncached",
}


def test_other_python_processes_do_not_search_the_working_directory():
    found = []
    for path in SOURCES:
        text = path.read_text()
        found += [path.stem for word in ("get_context(", "[sys.executable") if word in text]
    assert set(found) == {"child_processes"}


def _way_of_opening(call):
    """Returns the key of a call in `OTHER_OPENERS`; None for calls that do not open files."""
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if last != "open" or name in OTHER_OPENERS.keys() - {"open"}:
        is_ours = name.startswith("paths.") or name == last and last.startswith("read_")
        return next((key for key in (name, last) if key in OTHER_OPENERS and not is_ours), None)
    # `source.open(split)` opens no file: the mode of a file is a constant, or left out.
    modes = call.args[1 if name == "open" else 0 :][:1]
    modes += [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
    reads = mode[0] in "ra" and (name == "open" or not modes or isinstance(modes[0], ast.Constant))
    return (name if name == "open" else ".open") if reads else None


def test_files_of_others_are_opened_by_one_function():
    ways = collections.defaultdict(set)
    for path in [*(ROOT / "t0").rglob("*.py"), *(ROOT / "seqio_tasks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (way := _way_of_opening(node)):
                ways[way].add(path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("t0/"))
    allowed = {
        way: {name for name in names.split() if (ROOT / "t0" / f"{name}.py").is_file()}
        for way, names in OTHER_OPENERS.items()
    }
    assert ways == {way: names for way, names in allowed.items() if names}
