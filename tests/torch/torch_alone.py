"""Runs `python -m t0.torch` by one process that cannot import TensorFlow before it judges texts."""

import sys
from importlib.machinery import ModuleSpec

_HEAVY = ("tensorflow", "tensorflow_text", "mesh_tensorflow", "t5", "seqio", "gin")


class _Absent:
    """Finds these packages, and fails when one is imported."""

    def __init__(self, names):
        self._names = names

    def find_spec(self, name, *rest):
        return ModuleSpec(name, self) if name.partition(".")[0] in self._names else None

    def create_module(self, spec):
        raise AssertionError(f"{spec.name} was imported")


def main():
    # Gin's parser, which imports nothing, checks the gin file of an export.
    exports = any(word.startswith("--export") for word in sys.argv)
    names = _HEAVY[:-1] if exports else _HEAVY
    there = sorted({name.partition(".")[0] for name in sys.modules} & {*names})
    assert not there, f"{there} were imported before"
    absent = _Absent(names)
    sys.meta_path.insert(0, absent)
    from t0.cli import torch_run

    judge_texts = torch_run.judge_texts

    def judge_with_tensorflow(*arguments):
        sys.meta_path.remove(absent)
        judge_texts(*arguments)

    torch_run.judge_texts = judge_with_tensorflow
    return torch_run.console_entry_point()
