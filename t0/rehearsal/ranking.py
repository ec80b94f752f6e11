"""Answer choices scored by the pod's program on virtual cores, and by our scorer on one device.

    with VirtualScorer.open(run) as scorer:              # after gin has been parsed
        ranked = rank(run, scorer, "/models/tiny/model.ckpt-5", choices(run))
        ranked.pod, ranked.device                          # float32 [inputs, choices], nats

A pod scores a row for each pair of input and choice, as mode `score_eval` feeds them; our rank
evaluation encodes an input once for all of its choices. Both restore the same checkpoint.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Mapping

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh.lowering import Lowered, lower
from t0.mesh.pod_run import PodRun
from t0.rehearsal.virtual_cores import copy_program
from t0.rehearsal.virtual_pod import as_written, feature_names, fed_to_cores
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


class VirtualScorer:
    """The cores' scoring programs in one session.

    Args:
      lowered: the program of a core, with every core's slices.
    """

    def __init__(self, lowered: Lowered) -> None:
        scores, _ = lowered.fetches
        self._features = feature_names(lowered)
        with lowered.graph.as_default():
            to_slices = lowered.lowering.copy_masters_to_slices()
            slices = tf.group(*(v.initializer for v in tf.get_collection("TPU_VAR")))
            # As TensorFlow's estimator makes it where a model function gives none.
            saver = tf.train.Saver(sharded=True, allow_empty=True).as_saver_def()
        restore = lowered.graph.get_operation_by_name(saver.restore_op_name)
        copied = copy_program(lowered, program=[scores], host=[to_slices, slices, restore])
        self._copied = copied
        self._file_name = saver.filename_tensor_name
        self._restore = [restore.name, slices.name, to_slices.name]
        self._scores = [copied.name(scores.name, core) for core in range(copied.cores)]
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(copied.graph_def, name="")
        self.session = tf.Session(graph=self.graph, config=as_written())

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun) -> Iterator["VirtualScorer"]:
        """Builds the scoring programs of a run's cores, and closes their session at the end."""
        scoring = dataclasses.replace(run, mode="score_eval", packed=False, microbatches=1)
        scorer = cls(lower(scoring, every_slice=True))
        with scorer.session:
            yield scorer

    def restore(self, prefix: str) -> None:
        """Reads a checkpoint as the hosts do: into masters, and from these into slices."""
        for name in self._restore:
            operation = self.graph.get_operation_by_name(name)
            self.session.run(operation, {self._file_name: prefix})

    def scores(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns each core's log-likelihoods of the targets, float32 [cores, sequences]."""
        fed = fed_to_cores(self._copied, self._features, [batch] * self._copied.cores)
        return np.array(self.session.run(self._scores, fed))


def rank(
    run: PodRun, scorer: VirtualScorer, prefix: str, examples: tuple[np.ndarray, np.ndarray]
) -> Ranked:
    """Scores inputs and choices with a checkpoint, on virtual cores and on one device.

    Args:
      run: the run on a slice.
      scorer: its scoring programs.
      prefix: the checkpoint.
      examples: inputs [inputs, length] and choices [inputs, choices, length], one batch together.
    """
    inputs, targets = examples
    scorer.restore(prefix)
    rows = {
        "inputs": np.repeat(inputs, targets.shape[1], axis=0),
        "targets": targets.reshape(-1, targets.shape[-1]),
    }
    theirs = scorer.scores(rows)
    vocabulary = types.SimpleNamespace(vocab_size=run.vocabulary_size)
    spec = MeshModel(run.model_type, mtf.Shape([]), run.layout_rules)
    model, placement = build_model(spec, (vocabulary, vocabulary))
    ours = Scorer(model, run.variable_dtype, placement)
    with contextlib.closing(ours):
        ours.restore(prefix)
        scores = ours.log_likelihoods(inputs, targets)
    return Ranked(
        pod=theirs[0].reshape(scores.shape),
        device=scores,
        equal_on_cores=bool((theirs == theirs[0]).all()),
    )
