"""Performs the run of `t0 predict`, which makes predictions for the rows of a file.

    RowPredictionSettings("rows.csv", "tickets/model", "tickets_which", engine="torch")
    predict(arguments, "tickets/model/model.ckpt-400")        # in mode "infer"

The run uses the gin file `runs/infer.gin`, and has its settings in `t0.row_predictions`. It has the
same checks as other runs in mode "infer", and it can be resumed.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import gin
from t0.evaluation import ranking
from t0.evaluation.mesh_model import both_vocabularies, chosen_checkpoints, vocabulary_hash
from t0.evaluation.settings import DeviceName, EngineName
from t0.inference import jobs, row_predictions
from t0.inference.inputs import LengthLimits
from t0.inference.predictions import PredictionFile, PredictionJob, predict_checkpoints
from t0.mesh import devices
from t0.prompts.model_prompts import read_model_prompts
from t0.run import models

LINES = "predictions.jsonl"


@gin.configurable("row_predictions", module="t0")
@dataclasses.dataclass(frozen=True)
class RowPredictionSettings:
    """The settings of `t0 predict`.

    Attributes:
      rows: the file of rows; None if the run does not predict for the rows of a file.
      prompts: the folder with the model's recorded prompts.
      prompt: the name of the task whose prompt is used.
      engine: the engine that computes the predictions, "tensorflow" or "torch".
      device: the device of the engine "torch".
    """

    rows: str | None = None
    prompts: str = ""
    prompt: str = ""
    engine: EngineName = "tensorflow"
    device: DeviceName = "auto"


def predict(arguments: Mapping[str, Any], checkpoint: str | None) -> None:
    """Makes predictions for the configured rows; writes a line for each row that can be rendered.

    Args:
      arguments: the arguments of the run, as `run_arguments.read` returns them.

    Raises:
      UserError: a file cannot be read or written, or a score is not a number.
    """
    settings, inference = RowPredictionSettings(), jobs.InferenceSettings()
    vocabularies, lengths = both_vocabularies(arguments["vocabulary"]), arguments["sequence_length"]
    prompt = read_model_prompts(settings.prompts).choose(settings.prompt)
    rows = row_predictions.open_rows(settings.rows)
    task = row_predictions.RowTask(rows, prompt, vocabularies[0], lengths)
    chosen = chosen_checkpoints({**arguments, "eval_checkpoint_step": -1}, checkpoint)
    (path,) = chosen.values()
    open_model = models.opener(arguments, settings.engine, settings.device)
    dtype = devices.activation_dtype(inference.activation_dtype).name
    facts = {
        "checkpoint_fingerprint": checkpoint_files.fingerprint(path),
        "vocabulary_sha256": vocabulary_hash(vocabularies[0]),
        "engine": settings.engine,
    }
    inference = dataclasses.replace(
        inference, batch_size=arguments["batch_size"], activation_dtype=dtype
    )
    lines = os.path.join(inference.output_dir, LINES)  # noqa: PTH118
    if not prompt.is_ranked:
        limits = LengthLimits(lengths["inputs"], lengths["targets"])
        predict_checkpoints(
            [PredictionJob(task.source(), limits, inference, lines)],
            chosen,
            open_model,
            vocabularies[1],
            describe=lambda path: facts,
        )
        return
    facts |= {**task.facts(), "lengths": lengths, **inference.facts()}
    file = PredictionFile(lines, facts)
    if file.summary:
        return
    limits = functools.partial(
        ranking.batch_limits, arguments["batch_size"], lengths, vocabularies[1].vocab_size
    )
    row_predictions.rank_rows(task, file, open_model, limits, path, dtype)
