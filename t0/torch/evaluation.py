"""Mode `eval` on PyTorch: ranks tasks with choices, and decodes tasks with metrics of texts.

    evaluate(spec, joined, judges=True)    # spec: a `RunSpec` whose mode is "eval"

T5's metrics need TensorFlow: when the texts are decoded, the first process has them judged by
another one, `t5_mesh_transformer` with the run's own words, which writes the files of the
TensorFlow engine. Where TensorFlow is not installed, or the words come from a file, whose
`--module_import` would be executed, the texts stay, and the command that judges them is printed.
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


def evaluate(spec: RunSpec, joined: World, *, judges: bool) -> None:
    """Evaluates the tasks of a specification.

    Args:
      spec: a run whose mode is "eval".
      joined: the processes.
      judges: whether the command that judges may be started: its words are the user's own.

    Raises:
      UserError: if this engine does not evaluate such a run, or the metrics cannot be computed.
    """
    if spec.data is None or (spec.rank is None and spec.infer is None):
        raise UserError(
            "the specification has no evaluation: write it again, by t5_mesh_transformer "
            "--save_spec"
        )
    if spec.rank is not None:
        ranked = tuple(task for task in spec.data.tasks if task.rank)
        data = dataclasses.replace(spec.data, tasks=ranked)
        rank_evaluation.evaluate(dataclasses.replace(spec, data=data), joined)
    if spec.infer is None:
        return
    prediction.predict(spec, joined)
    joined.broadcast_text(lambda: _judge(spec, judges))


def _judge(spec: RunSpec, judges: bool) -> str:
    """Has the decoded texts judged by a process that has TensorFlow."""
    infer = spec.infer
    folder = os.path.dirname(infer.jobs[0].path)  # noqa: PTH120
    found = weights.find_checkpoints(spec.model_dir, infer.checkpoint, infer.steps)
    write_json(f"{folder}/{DECODED}", {str(step): path for step, path in found.items()})
    words = ["-m", "t0.cli.mesh_transformer", *spec.judge]
    if not judges or importlib.util.find_spec("tensorflow") is None:
        command = shlex.join(["python", *words])
        say(
            "the texts are decoded. T5's metrics need TensorFlow; where it is installed, and if "
            f"you trust where the specification comes from: {command}"
        )
        return "decoded"
    sys.stdout.flush()
    # The GPUs are this process's.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *words], env=environment, check=False)
    if done.returncode:
        raise UserError(
            "the metrics of the decoded texts were not computed, as the lines above say; the texts "
            "are kept, and the same command resumes"
        )
    return "judged"
