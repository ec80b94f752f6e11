"""Answer choices scored by the pod's program on virtual cores, and by our scorer on one device.

    with ReadingCores.open(run, "score_eval") as cores:  # after gin has been parsed
        ranked = rank(run, cores, "/models/tiny/model.ckpt-5", choices(run))
        ranked.pod, ranked.device                          # float32 [inputs, choices], nats

A pod scores a row for each pair of input and choice, as mode `score_eval` feeds them; our rank
evaluation encodes an input once for all of its choices. Both restore the same checkpoint.
"""

import contextlib
import dataclasses
import types

import numpy as np

from t0.compat import mtf
from t0.mesh.pod_run import PodRun
from t0.rehearsal.reading_cores import ReadingCores, equal_on_cores
from t0.scoring.mesh_model import MeshModel, build_model
from t0.scoring.scorer import Scorer


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Log-likelihoods of choices, float32 [inputs, choices], in nats.

    Attributes:
      pod: by the first core's program.
      device: by our scorer.
      equal_on_cores: whether every core has the same.
    """

    pod: np.ndarray
    device: np.ndarray
    equal_on_cores: bool

    @property
    def difference(self) -> float:
        """The greatest difference, relative to the largest log-likelihood."""
        return float(np.abs(self.pod - self.device).max() / np.abs(self.device).max())


def rank(
    run: PodRun, cores: ReadingCores, prefix: str, examples: tuple[np.ndarray, np.ndarray]
) -> Ranked:
    """Scores inputs and choices with a checkpoint, on virtual cores and on one device.

    Args:
      run: the run on a slice.
      cores: the programs of mode "score_eval".
      prefix: the checkpoint.
      examples: inputs [inputs, length] and choices [inputs, choices, length], one batch together.
    """
    inputs, targets = examples
    cores.restore(prefix)
    values = cores.values(rows_of(examples))
    theirs, _ = values[0]
    vocabulary = types.SimpleNamespace(vocab_size=run.vocabulary_size)
    spec = MeshModel(run.model_type, mtf.Shape([]), run.layout_rules)
    model, placement = build_model(spec, (vocabulary, vocabulary))
    ours = Scorer(model, run.variable_dtype, placement)
    with contextlib.closing(ours):
        ours.restore(prefix)
        scores = ours.log_likelihoods(inputs, targets)
    return Ranked(
        pod=theirs.reshape(scores.shape),
        device=scores,
        equal_on_cores=equal_on_cores(values),
    )


def rows_of(examples: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a row for each pair of input and choice: int32 [pairs, length] of each feature."""
    inputs, targets = examples
    return {
        "inputs": np.repeat(inputs, targets.shape[1], axis=0),
        "targets": targets.reshape(-1, targets.shape[-1]),
    }
