"""Runs `t5_mesh_transformer` several times in one process, as a notebook would: argv as JSON."""

import json
import os
import sys

from t0.cli import mesh_transformer
from t0.run import configure


def main():
    before = {name: os.environ[name] for name in ("T0_DATA_DIR", "T0_VOCAB")}
    for argv in [json.loads(word) for word in sys.argv[1:]]:
        mesh_transformer.main(["t5_mesh_transformer", *argv])
        configure.reset()
        os.environ.update(before)
