"""The cores' programs that train nothing: they restore a checkpoint and compute values of a batch.

with ReadingCores.open(run, "score_eval") as cores:          # after gin has been parsed
    cores.restore("/models/tiny/model.ckpt-5")
    cores.values({"inputs": ..., "targets": ...})[0]   # the first core's values
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from t0.compat import tf1 as tf
from t0.mesh.lowering import Lowered, lower
from t0.mesh.pod_run import PodRun
from t0.rehearsal.virtual_cores import copy_program
from t0.rehearsal.virtual_pod import as_written, feature_names, fed_to_cores


class ReadingCores:
    """The programs of a mode that reads a checkpoint, in one session.

    Args:
      lowered: the program of a core, with every core's slices.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._features = feature_names(lowered)
        with lowered.graph.as_default():
            to_slices = lowered.lowering.copy_masters_to_slices()
            slices = tf.group(*(v.initializer for v in tf.get_collection("TPU_VAR")))
            # As TensorFlow's estimator makes it where a model function gives none.
            saver = tf.train.Saver(sharded=True, allow_empty=True).as_saver_def()
        restore = lowered.graph.get_operation_by_name(saver.restore_op_name)
        self._copied = copy_program(
            lowered, program=lowered.fetches, host=[to_slices, slices, restore]
        )
        self._file_name = saver.filename_tensor_name
        self._restore = [restore.name, slices.name, to_slices.name]
        self._values = [
            [self._copied.name(value.name, core) for value in lowered.fetches]
            for core in range(self._copied.cores)
        ]
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(self._copied.graph_def, name="")
        self.session = tf.Session(graph=self.graph, config=as_written())

    @classmethod
    @contextlib.contextmanager
    def open(cls, run: PodRun, mode: str) -> Iterator["ReadingCores"]:
        """Builds the programs of a mode of `lowering.lower`; closes their session at the end."""
        reading = dataclasses.replace(run, mode=mode, packed=False, microbatches=1)
        cores = cls(lower(reading, every_slice=True))
        with cores.session:
            yield cores

    def restore(self, prefix: str) -> None:
        """Reads a checkpoint as the hosts do: into masters, and from these into slices."""
        for name in self._restore:
            operation = self.graph.get_operation_by_name(name)
            self.session.run(operation, {self._file_name: prefix})

    def values(self, batch: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
        """Returns each core's values of a batch, in the order of the program's fetches."""
        fed = fed_to_cores(self._copied, self._features, [batch] * self._copied.cores)
        return self.session.run(self._values, fed)


def equal_on_cores(values: list[list[np.ndarray]]) -> bool:
    """Returns whether all cores have the same values."""
    return all(
        np.array_equal(mine, first)
        for core in values
        for mine, first in zip(core, values[0], strict=True)
    )
