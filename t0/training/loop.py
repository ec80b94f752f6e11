"""Our own training loop: runs the lowered step in one session; a resumed run continues exactly.

    train(spec, data, LoopOptions(train_steps=12_200, seed=0))

`train` builds the graph. It fills the variables from the latest checkpoint, or from an initial
checkpoint, or at random. It compares the configuration with the one that the model directory
records, and writes a first checkpoint where there is none. Then it takes steps until one of these:

- the run has taken `train_steps` steps;
- the time limit is reached, or early stopping applies;
- SIGTERM or Ctrl-C comes: the run saves and exits with `PREEMPTED`, or 130;
- the loss is not finite.
"""

import contextlib
import io
import math
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import tf1 as tf
from t0.errors import UserError, original
from t0.feeding.live import DatasetBatches
from t0.feeding.training_data import ReadAhead, TrainingData
from t0.files import write_whole
from t0.mesh.devices import visible_gpus
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import checkpointing, evaluation, graph_memory, recorder, start_report
from t0.training.checkpointing import Checkpoints, Keep
from t0.training.evaluation import Evaluation
from t0.training.graph import METRICS, TrainingGraph, build
from t0.training.options import LoopOptions, TrainingSpec
from t0.training.recorder import Recorder
from t0.training.stopping import (
    BestEvaluation,
    BestRule,
    TimeLimit,
    exit_by_signal,
    watched_signals,
)
from t0.training.warm_start import restored_line, slots_line, warm_start

Data = TrainingData | DatasetBatches
_DEVICE = re.compile(r"(cpu|gpu):(\d+)$", re.IGNORECASE)


def train(spec: TrainingSpec, data: Data, options: LoopOptions) -> None:
    """Trains to `options.train_steps`.

    Args:
      spec: the model, batch and optimizer.
      data: the training data, as `t0.feeding.opening.open_dataset_function` returns it.
      options: the settings of the loop.

    Raises:
      UserError: if the data ends, the loss or the gradient is not finite, or a checkpoint cannot
        be read or written.
      SystemExit: `PREEMPTED`, after SIGTERM; 130 after Ctrl-C.
    """
    time_limit = TimeLimit(options.max_hours)
    check_devices(spec.mesh_devices)
    _check_features(spec.model_type, data.features)
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    graph = build(
        spec,
        features=data.features,
        seed=options.seed,
        activations=options.activations,
        validates=bool(options.validate_every_steps),
    )
    with (
        checkpointing.full_disk_explained(spec.model_dir),
        tf.Session(graph=graph.graph, config=session_config(spec.mesh_devices)) as session,
    ):
        run = _Run(spec, data, options, graph, session)
        run.start(time_limit)
        run.go()


def _check_features(model_type: str, names: Sequence[str]) -> None:
    if model_type == "bitransformer" and "inputs" not in names:
        raise UserError(
            "the training data has targets and no inputs, and an encoder-decoder needs inputs. "
            "Choose a task with inputs, such as one of prefix LM, or train a decoder alone "
            "(run.model_type = 'lm', as in models/lm_v1.gin)"
        )


class _Run:
    """One start of a run: its session, its step, and its position in the data."""

    def __init__(
        self,
        spec: TrainingSpec,
        data: Data,
        options: LoopOptions,
        graph: TrainingGraph,
        session: tf.Session,
    ) -> None:
        self._spec, self._data, self._options = spec, data, options
        self._graph, self._session = graph, session
        self._keep = Keep(spec.keep_checkpoint_max)
        self._best = BestEvaluation(_best_rule(self._keep, options))
        self._checkpoints = Checkpoints(spec.model_dir, graph, session, self._keep)
        self._evaluation = Evaluation(spec, data, options, graph=graph, session=session)
        self._rows = spec.batch_size * (spec.ensemble_inputs or 1)
        self._positions = self._rows * spec.sequence_length["targets"]
        self._tokens = self._rows * sum(spec.sequence_length.values())
        self._position: Mapping[str, Any] | None = None
        self._step = self._began = 0
        self._saved: int | None = None
        self._evaluated = True
        self._step_seconds = self._evaluating_seconds = self._saving_seconds = 0.0

    def start(self, time_limit: TimeLimit) -> None:
        """Fills the variables, prints their origin, and compares the configuration.

        Args:
          time_limit: the time limit, to which the seconds of earlier starts are added.
        """
        model_dir, options = self._spec.model_dir, self._options
        self._time_limit = time_limit
        latest = checkpoint_files.latest(model_dir)
        # First, because the error about a checkpoint of another shape is more exact than the one
        # about its configuration.
        for line in self._fill(latest):
            print(line, flush=True)
        for change in checkpointing.check_same_configuration(
            model_dir, allowed=options.allow_config_change
        ):
            print(f"changed:{change}", flush=True)
        self._step = int(self._session.run(self._graph.step))
        if not latest:
            self._began = self._step
        checkpointing.save_configuration(model_dir)

    def _fill(self, latest: str | None) -> Iterator[str]:
        graph, options = self._graph, self._options
        trained, slots = len(graph.trained), len(graph.slots)
        if latest:
            resume = self._checkpoints.restore(latest)
            step = int(self._session.run(graph.step))
            self._saved = step
            yield restored_line(trained, trained, latest, step)
            yield slots_line(slots, slots)
            self._began = resume["began"] if resume else step
            self._go_on_from(resume or {})
            if resume is None:
                yield (
                    "the checkpoint records no position in the data: the data is read from its "
                    "beginning"
                )
            elif resume["seed"] != options.seed:
                raise UserError(
                    f"{latest} was trained with seed {resume['seed']}, this run has seed "
                    f"{options.seed}, which would read the data in another order. Add "
                    f"--seed={resume['seed']}"
                )
            else:
                self._position = resume["position"]
            return
        with graph.graph.as_default():
            self._session.run(tf.global_variables_initializer())
        if self._spec.init_checkpoint:
            # What alone is trained, such as T5's task adapters, may be new.
            trained = self._spec.variable_filter
            new = [trained] if isinstance(trained, str) else []
            yield from warm_start(
                self._checkpoints,
                graph,
                self._spec.init_checkpoint,
                only=self._spec.init_variable_filter,
                unfilled=[*options.unfilled_variables, *new],
            )
        else:
            yield f"no checkpoint: starting from random weights, seed {options.seed}"
        self._session.run(graph.to_slices)

    def _go_on_from(self, record: Mapping[str, Any]) -> None:
        self._best = BestEvaluation(_best_rule(self._keep, self._options), record.get("judge"))
        self._time_limit.before_seconds = record.get("seconds", 0.0)
        self._evaluated = record.get("evaluated", True)

    def go(self) -> None:
        """Takes the steps that are left."""
        options, spec = self._options, self._spec
        first, total = self._step, options.train_steps
        ended = self._ended()
        if ended:
            print(f"nothing to train: {ended}")
            return
        interval = options.log_every_steps or recorder.default_interval(total - first)
        recording = Recorder(
            spec.model_dir,
            total=total,
            tokens=self._tokens,
            start=first,
            gpu_peaks=graph_memory.gpu_peaks,
        )
        batches = ReadAhead(self._data.batches(self._rows, self._position))
        with contextlib.closing(recording), batches, watched_signals() as came:
            size = self._size() if self._saved is None or first == 0 else {}
            if self._saved is None:
                self._save(recording)
            batch = self._next(batches)
            for line in [*self._start_lines(first, total), *self._evaluation.describe()]:
                print(line, flush=True)
            if not self._evaluated:
                self._evaluate(recording, last=False)
            while self._step < total:
                values = self._one_step(batch[0])
                self._position = batch[1]
                self._check_finite(values, batch[0])
                due = self._step % interval == 0
                if due or self._step in (first + 1, total):
                    recording.progress(self._step, self._fields(values) | size)
                    size = {}
                recording.first_pace(self._step)
                ended = self._after_step(recording, came())
                if ended:
                    print(f"{ended}; saved at step {self._step:,} of {total:,}")
                    return
                if self._step < total:
                    batch = self._next(batches)

    def _start_lines(self, first: int, last: int) -> list[str]:
        spec, graph = self._spec, self._graph
        return start_report.lines(
            start_report.Steps(first, last, self._rows, spec.sequence_length),
            parameters=graph.parameters,
            microbatches=graph.microbatches,
            memory=start_report.memory_line(
                graph_memory.memory(graph), devices=spec.mesh_shape.size, how=graph_memory.HOW
            ),
            data=self._data,
        )

    def _after_step(self, recording: Recorder, signalled: signal.Signals | None) -> str:
        """Evaluates and saves if that is due; returns why the run ends here, "" if it goes on."""
        last = self._step == self._options.train_steps
        # After a signal there may be little time: the next start evaluates.
        self._evaluated = last or not signalled
        better = self._evaluated and self._evaluate(recording, last or bool(self._ended()))
        every = self._spec.save_checkpoints_steps
        ended = "" if last else self._ended()
        if signalled or last or better or ended or (every and self._step % every == 0):
            self._save(recording)
        if signalled:
            path = checkpoint_files.checkpoint_path(self._spec.model_dir, self._step)
            where = f"step {self._step:,} of {self._options.train_steps:,}"
            kept = f"{path}; the same command goes on from there, bit for bit"
            exit_by_signal(signalled, where, kept)
        return ended

    def _ended(self) -> str:
        """Returns why the run ends before its last step, "" if it goes on."""
        if self._best.exhausted:
            return f"early stop: {self._best.verdict} (train_loop.stop_after_evaluations)"
        once_more = self._step_seconds + self._evaluating_seconds + self._saving_seconds
        return self._time_limit.verdict if self._time_limit.over(once_more) else ""

    def _next(self, batches: ReadAhead) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
        try:
            return next(batches)
        except StopIteration:
            raise UserError(
                f"the training data ended at step {self._step:,} of {self._options.train_steps:,}: "
                "the mixture gives too few examples to fill a batch. Is its cache empty?"
            ) from None

    def _one_step(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        began = time.monotonic()
        values = one_step(self._session, self._graph, batch)
        self._step += 1
        self._step_seconds = time.monotonic() - began
        return values

    def _size(self) -> dict[str, int]:
        """Returns what a new run's first record has, too: the sizes of the model and a batch."""
        return {
            "parameters": self._graph.parameters,
            "batch_sequences": self._rows,
            "batch_tokens": self._tokens,
        }

    def _fields(self, values: Mapping[str, float]) -> dict[str, float]:
        fields = recorder.step_fields(values, self._positions)
        shares = [s for s in self._data.shares() if s.examples]
        if shares and self._position:
            fields["passes"] = self._position["examples"] / sum(s.examples for s in shares)
        return fields

    def _check_finite(self, values: Mapping[str, float], batch: Mapping[str, np.ndarray]) -> None:
        if all(math.isfinite(values[name]) for name in ("loss", "gradient_square")):
            return
        path = os.path.join(self._spec.model_dir, f"bad_batch_{self._step}.npz")  # noqa: PTH118
        content = io.BytesIO()
        np.savez(content, **batch)
        write_whole(path, content.getvalue())
        square = values["gradient_square"]
        norm = math.sqrt(square) if square >= 0 else math.nan
        raise UserError(
            f"the loss is {values['loss']:g} and the gradient's norm {norm:g} at step "
            f"{self._step:,}: training has diverged. The last checkpoint, step {self._saved:,}, is "
            f"kept, and the batch of this step is in {path}; lower the learning rate or check the "
            "data"
        )

    def _evaluate(self, recording: Recorder, last: bool) -> bool:
        """Runs the evaluations that are due; returns whether the result is the best so far."""
        began = time.monotonic()
        fields = self._evaluation.measure(self._step, last=last)
        if not fields:
            return False
        better = self._best.see(self._step, fields)
        recording.record(self._step, fields)
        recording.note(self._step, self._best.note)
        print(evaluation.line(self._step, fields) + ("  best so far" if better else ""), flush=True)
        self._evaluating_seconds = time.monotonic() - began
        recording.pause(self._evaluating_seconds)
        if self._evaluation.all_kinds_in(fields) and not self._best.knows_metric:
            self._save(recording)  # the steps are right, only the metric's name is not
            raise self._best.unknown_metric()
        return better

    def _save(self, recording: Recorder) -> None:
        began = time.monotonic()
        record = {
            "began": self._began,
            "seed": self._options.seed,
            "position": self._position,
            "seconds": self._time_limit.seconds,
            "judge": self._best.state,
            "evaluated": self._evaluated,
        }
        best = self._best.best
        self._checkpoints.save(self._step, record, best.step if best else None)
        recording.flush()
        self._saved = self._step
        self._saving_seconds = time.monotonic() - began
        recording.pause(self._saving_seconds)


def one_step(
    session: tf.Session, graph: TrainingGraph, batch: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Takes one step on a batch, and returns the values of `graph.METRICS` by name."""
    fed = {graph.features[name]: batch[name] for name in graph.features}
    try:
        values, _ = session.run([graph.metrics, graph.train], fed)
    except tf.errors.OpError as error:
        raise original(error) from error
    return dict(zip(METRICS, values.tolist(), strict=True))


def _best_rule(keep: Keep, options: LoopOptions) -> BestRule:
    metric = keep.best_by
    if options.stop_after_evaluations is not None and metric is None:
        metric = "validation_loss"
    if metric and not (options.validate_every_steps or options.evaluate_every_steps):
        raise UserError(
            f"the best checkpoint is chosen by {metric}, and nothing is evaluated: set "
            "train_loop.validate_every_steps or train_loop.evaluate_every_steps"
        )
    return BestRule(metric, keep.smaller_is_better, options.stop_after_evaluations)


def session_config(devices: Sequence[str]) -> tf.ConfigProto:
    """Returns a session configuration in which every CPU device of the mesh exists."""
    found = [_DEVICE.search(name) for name in devices]
    cpus = [int(match[2]) + 1 for match in found if match and match[1].lower() == "cpu"]
    return tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": max(cpus, default=1)})


def check_devices(names: Sequence[str]) -> None:
    """Checks that the GPUs of a mesh exist.

    Raises:
      UserError: if TensorFlow does not see one of them.
    """
    wanted = {match[0].lower() for match in map(_DEVICE.search, names) if match}
    missing = sorted(name for name in wanted if name.startswith("gpu")) if wanted else []
    there = visible_gpus() if missing else []
    missing = [name for name in missing if name not in there]
    if missing:
        raise UserError(
            f"run.mesh_devices names {', '.join(missing)}, and TensorFlow sees "
            f"{', '.join(there) or 'no GPU'}. See `t0 doctor`; to run on the CPU, bind "
            "run.mesh_devices = None and run.mesh_shape = ''"
        )
