"""Fixtures of the PyTorch engine's tests: a small cached mixture, and a model trained on it."""

import json

import pytest

from tests.torch.engine_world import World, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    pytest.importorskip("torch")  # before the mixture is cached
    folder = tmp_path_factory.mktemp("world")
    tiny_world.lay_out(folder)
    # Three rows of each document, so that both engines have to know the documents.
    rows = folder / "data" / "weather" / "validation.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    numbered = [{**line, "document_id": f"report {n // 3}"} for n, line in enumerate(lines)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in numbered))
    world = World(folder)
    tasks = "--tasks=weather_train,weather_eval"
    cache = [f"--output_cache_dir={folder}/cache", "--module_import=t0.seqio_tasks"]
    done = world.python("-m", "t0.cli.cache_tasks", tasks, *cache)
    assert done.returncode == 0, done.stderr
    yield world
    world.close()


@pytest.fixture(scope="session")
def trained(world):
    """A model that the PyTorch engine trained for 30 steps: its folder, and its exports."""
    folders = {name: world.folder / f"trained {name}" for name in ("torch", "mtf", "hf")}
    exports = [f"--export_{name}={folders[name]}" for name in ("mtf", "hf")]
    done = world.torch(world.specified(folders["torch"], 30), *exports)
    assert done.returncode == 0, done.stderr
    return folders
