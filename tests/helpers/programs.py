"""Imports a Python file that is in no package, such as a program of docs/ or .ci/."""

import importlib.util


def loaded(path):
    """Returns the module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
