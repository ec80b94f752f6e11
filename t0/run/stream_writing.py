"""Writes the stream of a configured run: the run's batches in training order.

write_stream("gs://bucket/tuned/stream", arguments, steps="1-100")   # parse gin first
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.errors import UserError, say
from t0.feeding import batch_stream, manifest
from t0.feeding.data_spec import open_dataset_function
from t0.run import run_arguments
from t0.training import checkpointing
from t0.training.mesh_session import LoopOptions


def write_stream(folder: str, passed_arguments: Mapping[str, Any], steps: str | None) -> None:
    """Writes the batches of the configured run into a folder.

    Args:
      folder: the folder, local or `gs://`.
      passed_arguments: the arguments that the command passes to Mesh TensorFlow's `run`.
      steps: the first and the last step, such as "1-100". Steps have the same numbers as
        checkpoints. None for all steps of the run.

    Raises:
      UserError: if the data is not cached, or if the run does not have these steps.
    """
    arguments = run_arguments.read(passed_arguments)
    options = LoopOptions(arguments["train_steps"])
    data = open_dataset_function(
        arguments["train_dataset_fn"],
        options.seed,
        sequence_length=arguments["sequence_length"],
        vocabulary=arguments["vocabulary"],
        dataset_split=arguments["dataset_split"],
    )
    if data.spec is None:
        raise UserError(
            f"the training data comes from {data.origin}, and a stream needs a mixture that is "
            "drawn by rates"
        )
    if not all(stream.source.cache for stream in data.mixture.streams):
        raise UserError(
            "a stream needs a mixture whose tasks are cached examples: cache it with "
            "seqio_cache_tasks, and set mesh_train_dataset_fn.use_cached = True"
        )
    model_dir, initial = arguments["model_dir"], arguments["init_checkpoint"]
    done = checkpointing.steps_done(model_dir) or (
        checkpoint_files.global_step(initial) if initial else 0
    )
    recorded, _ = manifest.follow(
        model_dir,
        manifest.read(model_dir),
        data,
        arguments["batch_size"] * (arguments["ensemble_inputs"] or 1),
        (done, None),
        allow_change=options.allow_config_change,
    )
    first, last = _read_steps(steps, recorded.start.step, arguments["train_steps"])
    for line in batch_stream.write(
        folder, recorded, data, first=first, last=last, workers=len(os.sched_getaffinity(0))
    ):
        say(line)


def _read_steps(text: str | None, began: int, end: int) -> tuple[int, int]:
    if text is None:
        first, last = began + 1, end
    elif match := re.fullmatch(r"(\d{1,12})-(\d{1,12})", text):
        first, last = int(match[1]), int(match[2])
    else:
        raise UserError(f"--stream_steps={text}: expected two steps, such as {began + 1}-{end}")
    if not began < first <= last:
        raise UserError(
            f"the stream would have steps {first:,} to {last:,}, and the run begins with step "
            f"{began + 1:,}. Choose later steps (--stream_steps), or raise run.train_steps"
        )
    return first, last
