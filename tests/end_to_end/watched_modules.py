"""Reports what changes in other packages' modules: by the patches, by imports of ours, by runs.

    python -m tests.end_to_end.watched_modules '{"train": ["--model_dir=...", ...], "score": [...]}'
    # {"gin": ["gin.resource_reader._parse_config_path"], ..., "imports": [], "train": []}

The packages are imported as published, as far as they can be. What their modules hold is noted
before the patches are applied, before every module of this project is imported, and before each
command line of `t5_mesh_transformer` runs, in a process forked for it.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gin", "tensorflow", "seqio", "t5", "mesh_tensorflow")
# What the packages keep about a run that they carry out.
OWN_STATE = (
    "gin.config._CONFIG_IS_LOCKED",
    "tensorflow.core.config.flags.",
    "tensorflow.python.eager.context.",
    "tensorflow.python.training.",
)


def watched():
    """Everything in the packages' modules; of functions their code, of classes what they hold."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            found[name] = None
            for attribute, value in list(vars(module).items()):
                if not attribute.startswith("__"):
                    found |= _parts(f"{name}.{attribute}", value, name)
    return found


def _parts(name, value, module):
    found = {name: value}
    if inspect.isfunction(value):
        found[f"{name}.__code__"] = value.__code__
    elif inspect.isclass(value) and value.__module__ == module and not module.endswith("_pb2"):
        parts = list(vars(value).items())
        found |= {f"{name}.{part}": held for part, held in parts if part != "__annotations__"}
    return found


def changes(before):
    """Names of what is another object than before, is new in a module that was there, or is gone.

    Modules are no changes: imports, and attributes that TensorFlow loads when they are first used.
    """
    missing, after = object(), watched()
    names = {
        name
        for name in before.keys() | after.keys()
        if before.get(name, missing) is not after.get(name, missing)
        and not isinstance(after.get(name), types.ModuleType)
        and _module_of(name) in before
        and not name.startswith(OWN_STATE)
    }
    return sorted(name for name in names if name.rpartition(".")[0] not in names)


def _module_of(name):
    while name and name not in sys.modules:
        name = name.rpartition(".")[0]
    return name


def _modules_of_ours():
    for top in ("t0", "seqio_tasks"):
        for module in pkgutil.walk_packages([str(ROOT / top)], f"{top}."):
            # The PyTorch engine imports none of the watched packages, and needs PyTorch.
            if not module.name.endswith("__main__") and not module.name.startswith("t0.torch."):
                yield module.name


def _changed_by(argv):
    """Runs a command line in a fork; returns what it changed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        from t0.cli import mesh_transformer

        os.dup2(2, 1)
        before = watched()
        sys.argv = ["t5_mesh_transformer", *argv]
        mesh_transformer.main(sys.argv)
        with os.fdopen(writing, "w") as pipe:
            json.dump(changes(before), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(found)


def main(commands):
    """Prints what changes, by the package of the patches, by imports and by each command."""
    from t0 import compat

    published = {
        "gin": ["gin.config"],
        "tensorflow": ["tensorflow"],
        "seqio": ["seqio", "t5.data"],
        "mesh_tensorflow": compat.DOORS.values(),
    }
    found = {}
    for needed_by, modules in published.items():
        for module in modules:
            pkgutil.resolve_name(module)
        before = watched()
        compat.apply(needed_by)
        found[needed_by] = changes(before)
    before = watched()
    for name in _modules_of_ours():
        importlib.import_module(name)
    found["imports"] = changes(before)
    # Mesh TensorFlow's programs are graphs: TensorFlow's own switch, which a run sets as well.
    compat.tf1.disable_v2_behavior()
    found |= {name: _changed_by(argv) for name, argv in commands.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
