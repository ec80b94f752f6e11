"""With T0_CHANGED_FILES, which bin/check sets, the rules are checked only for these files."""

import os
from pathlib import Path

from tests.helpers.command_server import ROOT


def pytest_collection_modifyitems(config, items):
    if not (names := os.environ.get("T0_CHANGED_FILES")):
        return
    changed = {ROOT / name for name in names.split(os.pathsep)}

    def concerns(item):
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        paths = [value for value in parameters if isinstance(value, Path)]
        return "rules" not in item.path.parts or not paths or not changed.isdisjoint(paths)

    left = [item for item in items if not concerns(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if concerns(item)]
