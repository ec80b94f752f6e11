"""Things that commands of the recorded commit leave unfinished, and that a later commit goes on with.

    KINDS["train"].leave(bench)             # in $BASE/unfinished/train, when a recording is made
    KINDS["train"].go_on(bench, "train")    # what is kept: the files, whole

A command is killed when it has written a file. A later commit must finish its folder with the same
bytes.
"""

import dataclasses
import importlib.util
import shutil

from tests.equality.foundation import SCORED, TRAINED

_TASKS = "--module_import=t0.seqio_tasks"
_OPERATIVE = "--gin_file=$BASE/model/operative_config.gin"


def _here(words):
    """Returns words of the foundation, with $RUN as the model's folder."""
    return ("--model_dir=$RUN", *(word for word in words if not word.startswith("--model_dir")))


# The last value of a parameter counts.
_TRAINED = (
    *_here(TRAINED),
    "--gin_param=run.train_steps = 60",
    "--gin_param=run.save_checkpoints_steps = 5",
    "--gin_param=run.batch_size = 8",
    "--gin_param=train_loop.log_every_steps = 1",
)
_RANKED = (*_here(SCORED), "--gin_param=run.batch_size = 1")
_PREDICTED = (
    _TASKS,
    _OPERATIVE,
    "--gin_file=runs/infer.gin",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 96, 'targets': 8}",
    "--gin.CHECKPOINT_PATH='$BASE/model/model.ckpt-20'",
    "--gin.INFER_OUTPUT_DIR='$RUN/infer'",
    "--gin.MIXTURE_OR_TASK_NAME='weather_train'",
    "--gin.BATCH_SIZE=2",
    "--activation_dtype=float32",
)


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """A command that is killed.

    Attributes:
      program: an installed command, or a function, such as "package.module:main".
      words: its words; $RUN is the folder that it writes.
      pattern: of the file in $RUN whose appearance ends it.
      model: whether $RUN begins as a copy of the foundation's model.
    """

    program: str
    words: tuple[str, ...]
    pattern: str
    model: bool = False

    def leave(self, bench, name):
        """Starts and kills the command in the foundation."""
        run = bench.base / "unfinished" / name
        if self.model:
            shutil.copytree(bench.base / "model", run)
        else:
            run.mkdir(parents=True)
        words = [word.replace("$RUN", str(run)) for word in self.words]
        bench.kill_when(f"unfinished/{name}/{self.pattern}", self.program, *words)

    def go_on(self, bench, name):
        """Runs the command again, in a copy of what was left, and keeps what it did."""
        left = bench.base / "unfinished" / name
        if left.exists():
            shutil.copytree(left, bench.out(name) / "run")
            words = [word.replace("$RUN", "$OUT/run") for word in self.words]
            bench.run(name, self.program, *words, anew="torch" in name)


KINDS = {
    "train": Unfinished("t5_mesh_transformer", _TRAINED, "model.ckpt-10.index"),
    "rank": Unfinished("t5_mesh_transformer", _RANKED, "**/scores/*", model=True),
    "predict": Unfinished("t5_mesh_transformer", _PREDICTED, "**/*.partial/*0*"),
    "cache": Unfinished(
        "seqio_cache_tasks",
        (_TASKS, "--tasks=weather_.*", "--output_cache_dir=$RUN", "--num_workers=1"),
        "**/COMPLETED",
    ),
    "stream": Unfinished(
        "t5_mesh_transformer",
        (*_TRAINED, "--write_stream=$RUN/stream", "--gin_param=run.train_steps = 2000"),
        "**/batches*",
    ),
}
if importlib.util.find_spec("torch"):
    KINDS["torch_train"] = Unfinished(
        "t5_mesh_transformer", (*_TRAINED, "--engine=torch", "--device=cpu"), "torch.ckpt-10/*"
    )


def leave_all(bench):
    """Leaves each thing unfinished, in the foundation."""
    for name, kind in KINDS.items():
        kind.leave(bench, name)
