"""Runs mode `eval` on PyTorch: ranks answer choices, or decodes texts and computes metrics.

    evaluate(spec, world, computes_metrics=True)    # spec: a `RunSpec` whose mode is "eval"

The metrics of a task decide whether its choices are ranked or texts are decoded. T5's metrics need
TensorFlow. So after decoding, the first process starts `t5_mesh_transformer` with the arguments of
the run. This command computes the metrics and writes the same files as the TensorFlow engine. It is
not started if TensorFlow is not installed. It is also not started if the arguments come from a
specification file, because it would execute the `--module_import` in this file. In both cases the
decoded texts are kept, and the command is printed.
"""

import dataclasses
import importlib.util
import os
import shlex
import subprocess
import sys

from t0.config.specification import RunSpec
from t0.errors import UserError, say
from t0.scoring.results import DECODED, write_json
from t0.torch import prediction, rank_evaluation, weights
from t0.torch.world import World


def evaluate(spec: RunSpec, world: World, *, computes_metrics: bool) -> None:
    """Evaluates the tasks of a specification.

    Args:
      spec: a run whose mode is "eval".
      world: the processes of the run.
      computes_metrics: whether the command that computes the metrics may be started. This is safe
        if its arguments come from the user's command line instead of a file.

    Raises:
      UserError: if this engine cannot evaluate this run, or the metrics cannot be computed.
    """
    if spec.data is None or (spec.rank is None and spec.infer is None):
        raise UserError(
            "the specification has no evaluation: write it again with t5_mesh_transformer "
            "--save_spec"
        )
    if spec.rank is not None:
        ranked = tuple(task for task in spec.data.tasks if task.rank)
        data = dataclasses.replace(spec.data, tasks=ranked)
        rank_evaluation.evaluate(dataclasses.replace(spec, data=data), world)
    if spec.infer is None:
        return
    prediction.predict(spec, world)
    world.broadcast_text(lambda: _compute_metrics(spec, computes_metrics))


def _compute_metrics(spec: RunSpec, computes_metrics: bool) -> str:
    """Computes the metrics of the decoded texts in a separate process with TensorFlow."""
    infer = spec.infer
    folder = os.path.dirname(infer.jobs[0].path)  # noqa: PTH120
    checkpoints = weights.find_checkpoints(spec.model_dir, infer.checkpoint, infer.steps)
    write_json(f"{folder}/{DECODED}", {str(step): path for step, path in checkpoints.items()})
    words = ["-m", "t0.cli.mesh_transformer", *spec.judge]
    if not computes_metrics or importlib.util.find_spec("tensorflow") is None:
        command = shlex.join(["python", *words])
        say(
            "the texts are decoded, and their metrics need TensorFlow. On a machine with "
            f"TensorFlow, if you trust the source of the specification, run: {command}"
        )
        return "decoded"
    sys.stdout.flush()
    # This process uses the GPUs, so the other process must not use them.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *words], env=environment, check=False)
    if done.returncode:
        raise UserError(
            "the metrics of the decoded texts were not computed, as the lines above say; the texts "
            "are kept, and the same command resumes"
        )
    return "judged"
