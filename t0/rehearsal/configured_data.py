"""The run's own mixture, read as TPUEstimator would be given it, to feed a rehearsal.

    vocabulary = check(flags)                    # after gin has been parsed; prints notes
    with fed(run, input_function(vocabulary)) as batches:
        ...

The input function is that of Mesh TensorFlow's `run`, with T5's dataset function and packing, and
of `t0/training/estimator.py`, which repeats and batches. Nothing of a model directory is read.
"""

import sys
import tempfile
from typing import Any

from t0.compat import mesh_utils, seqio, t5_mesh
from t0.errors import UserError
from t0.rehearsal.feeding import InputFunction
from t0.run import host_pipeline, modes, preflight

# Mesh TensorFlow's `run` takes the names of a TPU, and looks none up before it trains.
_TPU = "rehearsed"
_PLACES = dict.fromkeys(("tpu_job_name", "gcp_project", "tpu_zone"))


def check(flags: Any) -> Any:
    """Checks that the mixture is there, and cached where it must be; returns its vocabulary.

    Args:
      flags: the parsed flags of the command, see `t0.config.flags`.

    Raises:
      UserError: for a mixture, cache or split that is missing.
    """
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    for note in preflight.check_mixtures({}, on_tpu=True):
        print(note, file=sys.stderr)
    return t5_mesh.get_vocabulary()


def vocabulary_size(vocabulary: Any) -> int:
    """Returns the ids of the inputs' vocabulary.

    Raises:
      UserError: if inputs and targets have vocabularies of other sizes.
    """
    sizes = [
        of(vocabulary).vocab_size
        for of in (mesh_utils.inputs_vocabulary, mesh_utils.targets_vocabulary)
    ]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the vocabularies of inputs and targets have {sizes[0]:,} and {sizes[1]:,} ids, and a "
            "rehearsal takes one for both"
        )
    return sizes[0]


def input_function(vocabulary: Any) -> InputFunction:
    """Returns what TPUEstimator would be given to train the run that gin configures."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model_dir": folder, "vocabulary": vocabulary, **_PLACES}
        found = host_pipeline.input_function("train", arguments | modes.engine_arguments(tpu=_TPU))
    if found is None:
        raise UserError("the run reads no data: run.train_steps leaves nothing to train")
    return found
