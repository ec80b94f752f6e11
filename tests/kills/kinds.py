"""The commands that are killed: each over a small world, with its files and how it begins.

world = World(folder)                 # data, vocabulary, a cache, a model of four steps
kind = KINDS["train"](world)          # program, words, and the folder that it writes
"""

import dataclasses
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.command_lines import EVALUATE, TRAIN
from tests.helpers.command_server import entry_points

ROOT = Path(__file__).resolve().parents[2]

ROWS = 4000


@dataclasses.dataclass(frozen=True)
class Kind:
    """A command that is killed.

    Attributes:
      program: the installed command.
      words: its words.
      out: the folder that it writes.
      before: the content of `out` before it is run; None for an empty folder.
      finished: a folder that appears whole at the end, and that the command refuses to write again.
    """

    program: str
    words: tuple[str, ...]
    out: Path
    before: Path | None = None
    finished: Path | None = None

    def begin(self) -> None:
        """Makes the folder as it is before a run."""
        shutil.rmtree(self.out, ignore_errors=True)
        if self.before:
            shutil.copytree(self.before, self.out)
        else:
            self.out.mkdir()

    def run(self) -> None:
        """Runs the command in this process, unless what it makes is there."""
        if self.finished and self.finished.exists():
            return
        module, function = entry_points()[self.program]
        sys.argv = [self.program, *self.words]
        status = getattr(importlib.import_module(module), function)()
        if status:
            raise SystemExit(status)


class World:
    """Data, a vocabulary, a cache and a trained model, made by the commands themselves.

    Tasks of its data are registered when `t0.seqio_tasks` is imported, which has to come after.

    Args:
      folder: an empty folder.
      run: runs a kind to its end in a process of its own, and raises where it fails.
    """

    def __init__(self, folder: Path, run: Callable[[Kind], None]) -> None:
        from tests.end_to_end import tiny_world

        self.folder = folder
        self._run = run
        self._made: set[str] = set()
        tiny_world.lay_out(folder)
        _lay_out_mine(folder / "data")
        (folder / "tmp").mkdir()
        os.environ.update(
            {
                "T0_DATA_DIR": str(folder / "data"),
                "T0_VOCAB": str(folder / "vocab.model"),
                "TMPDIR": str(folder / "tmp"),
            }
        )

    def cached(self) -> Path:
        """The cache of the tasks of training and evaluation."""
        tasks = "--tasks=weather_train,weather_eval"
        words = (tasks, *_TASKS[:1], f"--output_cache_dir={self.folder / 'cache'}")
        return self._first("cache", Kind("seqio_cache_tasks", words, self.folder / "cache"))

    def trained(self) -> Path:
        """A model of four steps."""
        out = self.folder / "model"
        words = (*_tasks(self.cached()), f"--model_dir={out}", *TRAIN, _CACHED, *_SMALL)
        return self._first("model", Kind("t5_mesh_transformer", words, out))

    def _first(self, name: str, kind: Kind) -> Path:
        if name not in self._made:
            kind.begin()
            self._run(kind)
            self._made.add(name)
        return kind.out


def _lay_out_mine(data: Path) -> None:
    """A dataset with more rows, so that caching takes a while."""
    shutil.copytree(data / "weather", data / "mine")
    templates = data / "mine" / "templates.yaml"
    templates.write_text(templates.read_text().replace("weather", "mine", 1))
    rows = [json.loads(line) for line in (data / "mine" / "train.jsonl").read_text().splitlines()]
    more = ({**rows[n % len(rows)], "place": f"row {n}"} for n in range(ROWS))
    (data / "mine" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in more))


_TASKS = ("--module_import=t0.seqio_tasks",)
_TYPE = "--gin_param=get_variable_dtype.master_dtype = 'float32'"
_SMALL = ("--gin_param=num_layers = 1", _TYPE)
_CACHED = "--gin_param=mesh_train_dataset_fn.use_cached = True"


def _tasks(cache: Path) -> tuple[str, ...]:
    return (*_TASKS, f"--additional_task_cache_dirs={cache}")


def caching(world: World) -> Kind:
    """`seqio_cache_tasks` over a dataset of one's own, in two processes."""
    out = world.folder / "out_cache"
    words = ("--tasks=mine_(which_word|retell)", *_TASKS, f"--output_cache_dir={out}")
    return Kind("seqio_cache_tasks", (*words, "--splits=train", "--num_workers=2"), out)


def converting(world: World) -> Kind:
    """`t0 convert` from Mesh TensorFlow's format to Hugging Face's."""
    from tests.checkpoints.tiny_checkpoints import model_shape, weights, write_mtf

    source = world.folder / "mtf"
    if not source.exists():
        write_mtf(source, weights(model_shape(vocabulary=8192, d_model=128, inner=128)))
    out = world.folder / "out_hf"
    words = ("convert", str(source), str(out / "hf"), "--to=hf")
    return Kind("t0", words, out, finished=out / "hf")


def training(world: World) -> Kind:
    """Two steps with a checkpoint each, of which the last stays."""
    out = world.folder / "out_model"
    more = {"run.train_steps": 2, "run.save_checkpoints_steps": 1, "run.keep_checkpoint_max": 1}
    more["train_loop.log_every_steps"] = 1
    words = (*_tasks(world.cached()), f"--model_dir={out}", *TRAIN, _CACHED, *_SMALL)
    words += tuple(f"--gin_param={name} = {value}" for name, value in more.items())
    return Kind("t5_mesh_transformer", words, out)


def scoring(world: World) -> Kind:
    """Rank evaluation of two tasks."""
    out, before = world.folder / "out_scored", world.trained()
    words = (*_tasks(world.cached()), f"--model_dir={out}", *EVALUATE)
    words += ("--gin_param=mesh_eval_dataset_fn.use_cached = True", *_SMALL)
    words += ("--gin_param=run.eval_checkpoint_step = 4",)
    return Kind("t5_mesh_transformer", words, out, before)


def inferring(world: World) -> Kind:
    """Greedy predictions for two tasks, in batches of four."""
    out, model = world.folder / "out_infer", world.trained()
    macros = {
        "MIXTURE_OR_TASK_NAME": "weather_train",
        "TASK_FEATURE_LENGTHS": {"inputs": 96, "targets": 8},
        "CHECKPOINT_PATH": f"{model}/model.ckpt-4",
        "INFER_OUTPUT_DIR": str(out),
        "BATCH_SIZE": 4,
    }
    words = (*_TASKS, f"--gin_file={model}/operative_config.gin", "--gin_file=runs/infer.gin")
    words += tuple(f"--gin.{name}={value!r}" for name, value in macros.items())
    return Kind("t5_mesh_transformer", words, out)


KINDS: dict[str, Callable[[World], Kind]] = {
    "cache": caching,
    "convert": converting,
    "train": training,
    "score": scoring,
    "infer": inferring,
}
