"""Mode `infer` on Mesh TensorFlow: predicts texts for a task or for the inputs in a file.

    predict(
        MeshModel("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=32,
        model_dir="/models/tiny",
    )   # as t0.infer is configured, into <infer.output_dir>/<task>_1000.jsonl

Each finished batch is written to a file, so that a killed run can resume after its last finished
batch.
"""

from collections.abc import Mapping
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.inference import prediction_loop
from t0.inference.jobs import InferenceSettings, RunArguments, make_jobs, make_t5_jobs
from t0.inference.text_decoder import make_mesh_generator
from t0.scoring.mesh_model import MeshModel, both_vocabularies, chosen_checkpoints, vocabulary_hash


def predict(
    model: MeshModel,
    *,
    vocabulary: Any,
    lengths: Mapping[str, int],
    batch_size: int,
    model_dir: str,
    steps: Any = None,
    checkpoint: str | None = None,
) -> None:
    """Writes the predictions that gin configures with `t0.infer` or with T5's `infer.gin`.

    Args:
      model: the model's type and mesh.
      vocabulary: one vocabulary, or (inputs, targets).
      lengths: the limits {"inputs": tokens, "targets": tokens}.
      batch_size: the number of sequences in a batch. If `infer.batch_size` is set, it is used
        instead.
      model_dir: the folder of the checkpoints.
      steps: a step, a list of steps, "all" or None (the latest).
      checkpoint: a checkpoint to use instead of those in `model_dir`, or None.

    Raises:
      UserError: if nothing is configured, or an input or output file cannot be used.
    """
    settings = InferenceSettings()
    vocabularies = both_vocabularies(vocabulary)
    run = RunArguments(vocabularies, lengths, batch_size)
    jobs = make_jobs(settings, run) if settings.configured else make_t5_jobs(run)

    def describe(path: str) -> dict[str, Any]:
        return {
            "checkpoint_fingerprint": checkpoint_files.fingerprint(path),
            "vocabulary_sha256": vocabulary_hash(vocabularies[0]),
        }

    prediction_loop.predict_checkpoints(
        jobs,
        chosen_checkpoints(model_dir, steps, checkpoint),
        lambda: make_mesh_generator(
            model,
            vocabularies,
            dtype=jobs[0].settings.activation_dtype,
            method=jobs[0].settings.method,
        ),
        vocabularies[1],
        describe=describe,
    )
