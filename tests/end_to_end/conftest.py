"""Whole runs of the real commands over a small world; each is made once and then looked at."""

import dataclasses
import json
import os
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end import prepared_rows, recipes, tiny_world
from tests.end_to_end.command_lines import LENGTHS, ONE_LAYER
from tests.helpers.command_server import CommandServer

ROOT = Path(__file__).resolve().parents[2]

# What makes the recipes small: later bindings, as their user would append them.
SMALL = [
    "--gin_param=run.train_steps = 20",
    "--gin_param=run.batch_size = ('tokens_per_batch', 1536)",
    f"--gin_param=run.sequence_length = {LENGTHS}",
]


@dataclasses.dataclass(frozen=True)
class World:
    """Folders and commands of the small world."""

    folder: Path
    environment: dict

    @property
    def cache(self):
        return self.folder / "cache"

    def run(self, *command):
        """Runs an installed command, without a network device where the kernel allows that."""
        program = Path(sys.executable).parent / command[0]
        return subprocess.run(
            [*_without_network(), program, *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def recipe(self, text, **settings):
        """The arguments of a published command line, its settings filled in, TPU flags left out."""
        words = shlex.split(string.Template(text).substitute(settings))
        return [word for word in words if not word.startswith(recipes.TPU_FLAGS)]


def _without_network():
    works = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
    return ["unshare", "-rn"] if works else []


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    tiny_world.lay_out(folder)
    variables = {"T0_DATA_DIR": folder / "data", "T0_VOCAB": folder / "vocab.model"}
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return World(folder, environment)


@pytest.fixture(scope="session")
def server(world):
    server = CommandServer(world.environment)
    yield server
    server.close()


@pytest.fixture(scope="session")
def command(server, world):
    """Runs `t5_mesh_transformer` with the small world's tasks and cache."""

    def run(*argv, tasks=True, **kwargs):
        ours = ["--module_import=t0.seqio_tasks", f"--additional_task_cache_dirs={world.cache}"]
        return server.run(*(ours if tasks else []), *argv, **kwargs)

    return run


@pytest.fixture(scope="session")
def cached(server, world):
    """The cache of the training and evaluation mixtures; what its command printed."""
    done = server.run(
        "--tasks=weather_train,weather_eval",
        f"--output_cache_dir={world.cache}",
        "--module_import=t0.seqio_tasks",
        program="seqio_cache_tasks",
    )
    assert done.status == 0, done.err
    return done


@pytest.fixture(scope="session")
def pretrained(cached, command, world):
    """The folder of a tiny model of one step, for its operative config and its checkpoint."""
    folder = world.folder / "pretrained"
    done = command(
        f"--model_dir={folder}",
        "--gin_file=dataset.gin",
        "--gin_file=models/t5.1.1.tiny.gin",
        "--gin_file=learning_rate_schedules/constant_0_001.gin",
        "--gin_param=MIXTURE_NAME = 'weather_train'",
        "--gin_param=mesh_train_dataset_fn.use_cached = True",
        "--gin_param=run.train_steps = 1",
        "--gin_param=run.batch_size = 4",
        f"--gin_param=run.sequence_length = {LENGTHS}",
        "--gin_param=get_variable_dtype.master_dtype = 'float32'",
        ONE_LAYER,
    )
    assert done.status == 0, done.err
    return folder


@pytest.fixture(scope="session")
def trained(pretrained, world):
    """The published training command, made small; what it printed, and its model directory."""
    folder = world.folder / "model"
    arguments = world.recipe(
        recipes.TRAIN,
        MODEL_DIR=folder,
        CACHE_DIR=world.cache,
        MIXTURE_NAME="weather_train",
        PRETRAINED=pretrained,
        TPU_SIZE="v3-512",
        TRAIN_STEPS=1112200,
    )
    done = world.run("t5_mesh_transformer", *arguments, *SMALL)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture(scope="session")
def model_dir(trained):
    return trained[1]


@pytest.fixture(scope="session")
def scored(model_dir, server, world):
    """The published rank evaluation command, made small; what it printed, and its results."""
    arguments = world.recipe(
        recipes.EVALUATE,
        MODEL_DIR=model_dir,
        CACHE_DIR=world.cache,
        EVAL_MIXTURE_NAME="weather_eval",
        TPU_SIZE="v3-128",
        TRAIN_STEPS=1112200,
    )
    done = server.run(*arguments, *SMALL)
    assert done.status == 0, done.err
    path = model_dir / "validation_eval" / "results_20.json"
    return done, json.loads(path.read_text())


@pytest.fixture(scope="session")
def prepared_tfds(tmp_path_factory):
    """A few rows of T5's English to German data and of C4, as TensorFlow Datasets writes them."""
    folder = tmp_path_factory.mktemp("tfds")
    prepared_rows.prepare(folder)
    return folder
