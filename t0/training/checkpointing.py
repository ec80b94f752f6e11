"""Writes and restores a run's checkpoints, resume state and configuration.

    checkpoints = Checkpoints("/models/tiny", graph, session, Keep(last=2))
    checkpoints.save(100, {"position": position}, best=80)
    checkpoints.restore("/models/tiny/model.ckpt-100")     # returns the resume state, or None
    save_configuration("/models/tiny")

The checkpoint of step 100 consists of Mesh TensorFlow's files `model.ckpt-100.index` and
`.data-...`, and of `model.ckpt-100.resume.npz`. The `.resume.npz` file holds the position in the
data and the seed. If weights have more bits in memory than in the checkpoint, it also holds the
missing bits.

`Checkpoints.save` writes all files into a temporary folder and renames them when they are complete.
The index comes last, because a checkpoint without an index does not count. Then `save` writes the
file `checkpoint`, which names the latest checkpoint. In a bucket, files are uploaded in the same
order. After the upload of each file, its size and checksum are verified.

`warm_start` fills a run's variables from the checkpoint of another run. Every variable of the model
needs a value in that checkpoint. Otherwise, an error is raised. Two kinds of variables may keep
their random values: those that the user lists, and those of layers that a gin file adds by name,
such as the adapters of T5's `task_adapter.gin`.

`configuration.json` in the same folder holds gin's values as text. If a run is started again with
other values, an error lists the differences. A few parameters may differ between two starts of the
same run.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files, operative_config
from t0.compat import gin, mesh_utils
from t0.compat import tf1 as tf
from t0.config import saved_config, specification
from t0.config.bindings import bound
from t0.errors import UserError, say, write_reason
from t0.files import object_facts, paths, publishing
from t0.tasks.prompted_tasks import prompts_of_mixture
from t0.training import model_directory, resume_file
from t0.training.graph import TrainingGraph
from t0.training.loop import finished_line
from t0.training.recorder import restored_line, slots_line

_SAVING = ".saving-"
BYTES_AT_ONCE = 2**28
WRITE_ERRORS = (OSError, tf.errors.OpError, publishing.OutputError)

# The classes are registered here, because the modules that define them must not depend on gin.
Keep = gin.external_configurable(
    model_directory.Keep, "keep_checkpoints", module="t0", denylist=["last"]
)
Adapter = gin.external_configurable(specification.AdapterSpec, "adapter", module="t0")


def steps_done(model_dir: str) -> int:
    """Returns the step of the latest checkpoint in a model directory, or 0 if there is none."""
    latest = checkpoint_files.latest(model_dir)
    return checkpoint_files.global_step(latest) if latest else 0


def repair_latest_checkpoint_file(model_dir: str) -> None:
    """Rewrites the file `checkpoint` if it names an incomplete checkpoint, and prints a line.

    This happens if a run was killed before it wrote the file. After the repair, the run and all
    other tools find the latest complete checkpoint.

    Raises:
      UserError: if there are checkpoints, but all of them are incomplete.
    """
    latest = None if checkpoint_files.named(model_dir) else checkpoint_files.latest(model_dir)
    if latest is None:
        return
    path = os.path.join(model_dir, "checkpoint")  # noqa: PTH118
    fault = "does not name a checkpoint that is complete" if paths.exists(path) else "is missing"
    _name_latest(model_dir, int(latest.rpartition("-")[2]))
    say(f"{path} {fault}: resuming from {latest}, the newest whose files are complete")


def is_finished(model_dir: str, train_steps: int) -> bool:
    """Returns whether the run has reached its last step. If it has, prints a line.

    First repairs the file `checkpoint`; see `repair_latest_checkpoint_file`.
    """
    repair_latest_checkpoint_file(model_dir)
    done = steps_done(model_dir)
    if done >= train_steps:
        say(finished_line(model_dir, done, train_steps))
    return done >= train_steps


class Checkpoints:
    """The checkpoints of one run.

    Args:
      model_dir: the model directory.
      graph: the training graph.
      session: the session that holds the graph's variables.
      keep: the rule that decides which checkpoints are retained.
    """

    def __init__(
        self, model_dir: str, graph: TrainingGraph, session: tf.Session, keep: model_directory.Keep
    ) -> None:
        self._model_dir = model_dir
        self._graph = graph
        self._session = session
        self._keep = keep
        with graph.graph.as_default():
            self._variables = {v.op.name: v for v in tf.global_variables()}
            self._saver = tf.train.Saver(list(self._variables.values()), max_to_keep=None)
            weights = {name: self._variables[name] for name in graph.trained}
            self._finite = {
                name: tf.reduce_all(tf.math.is_finite(tf.cast(weight, tf.float32)))
                for name, weight in weights.items()
            }
        # The steps of the checkpoints that this run wrote, in this start or in an earlier start.
        # The run deletes no other checkpoints.
        self._written_steps: list[int] = []

    def save(self, step: int, resume: Mapping[str, Any], best: int | None = None) -> str:
        """Writes the checkpoint of `step`.

        Args:
          step: the number of completed steps.
          resume: the resume state, which `restore` returns.
          best: the step of the best checkpoint so far.

        Returns:
          the path of the checkpoint.

        Raises:
          UserError: if the checkpoint cannot be written. Earlier checkpoints stay unchanged.
        """
        path = checkpoint_files.checkpoint_path(self._model_dir, step)
        folder = os.path.join(self._model_dir, f"{_SAVING}{step}")  # noqa: PTH118
        if paths.is_remote(self._model_dir):
            # Write to a local disk first. This costs nothing, because TensorFlow itself would
            # buffer each file on a local disk to upload it.
            folder = tempfile.mkdtemp(prefix=_SAVING)
        try:
            _remove_leftovers(self._model_dir, step)
            paths.make_folder(folder)
            prefix = os.path.join(folder, os.path.basename(path))  # noqa: PTH118,PTH119
            self._session.run(self._graph.to_masters)
            with self._graph.graph.as_default():  # otherwise the saver sees eager mode
                self._saver.save(self._session, prefix, write_meta_graph=False, write_state=False)
            written_steps = sorted({*self._written_steps, step})
            resume = {**resume, "own": written_steps}
            resume_file.write(prefix, resume, self.low_halves())
            _publish(folder, self._model_dir)
            self._written_steps = written_steps
            _name_latest(self._model_dir, step)
        except WRITE_ERRORS as error:
            with contextlib.suppress(*WRITE_ERRORS):
                _remove(folder)
            reason, last = write_reason(error), _last_checkpoint(self._model_dir)
            raise UserError(f"checkpoint {path} cannot be saved: {reason}. {last}") from error
        self._delete(best)
        return path

    def infinite_weights(self) -> list[str]:
        """Returns the names of weights that contain NaN or infinity."""
        self._session.run(self._graph.to_masters)
        finite = self._session.run(self._finite)
        return [name for name, value in finite.items() if not value]

    def restore(self, checkpoint: str) -> dict[str, Any] | None:
        """Restores a checkpoint of this run exactly, and returns its resume state.

        The result is the resume state that was passed to `save`. It is None if the checkpoint has
        no resume state, like the checkpoints of Mesh TensorFlow's own loop.

        Raises:
          UserError: if a variable is missing in the checkpoint, or has another shape or type there.
        """
        checkpoint_files.check_variables(checkpoint, self.variables)
        with self._graph.graph.as_default():
            self._saver.restore(self._session, checkpoint)
        self._session.run(self._graph.to_slices)
        resume = self._read_resume(checkpoint)
        if resume is not None:
            # Drop the steps whose checkpoints were deleted after this resume state was written.
            # Otherwise these steps would count as the latest checkpoints.
            written_steps = resume.pop("own")
            self._written_steps = [
                s for s in checkpoint_files.steps(self._model_dir) if s in written_steps
            ]
        return resume

    def assign(self, name: str, value: np.ndarray) -> None:
        """Sets the variable with the name `name` to `value`."""
        variable = self._variables[name]
        kind = variable.dtype.base_dtype.as_numpy_dtype
        initial = variable.initializer.inputs[1]
        self._session.run(variable.initializer, {initial: value.astype(kind)})

    @property
    def variables(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns name -> (shape, type), for the variables in checkpoints."""
        return checkpoint_files.read_graph(self._variables.values())

    def _delete(self, best: int | None) -> None:
        stay = model_directory.select_retained_steps(self._written_steps, self._keep, best)
        for step in set(self._written_steps) - set(stay):
            _remove_checkpoint(checkpoint_files.checkpoint_path(self._model_dir, step))
        self._written_steps = stay

    def low_halves(self) -> dict[str, np.ndarray]:
        """Returns the bits of the weights that the checkpoint's narrower types cannot store."""
        halves = {}
        for group in self._slices_together():
            values = self._session.run([variable for _, _, variable in group])
            for (master, key, _), wide in zip(group, values, strict=True):
                if master.dtype.base_dtype == tf.bfloat16 and wide.dtype == np.float32:
                    halves |= resume_file.low_halves(key, wide)
                else:
                    halves[f"wide/{key}"] = wide
        return halves

    def _read_resume(self, checkpoint: str) -> dict[str, Any] | None:
        with resume_file.open_arrays(checkpoint, tf.errors.OpError) as content:
            if content is None:
                return None
            for group in self._slices_together():
                nearest = self._session.run([variable for _, _, variable in group])
                feeds = {}
                for (_, key, variable), value in zip(group, nearest, strict=True):
                    feeds[variable.initializer.inputs[1]] = resume_file.wide_slice(
                        content, key, value
                    )
                self._session.run([variable.initializer for _, _, variable in group], feeds)
            return resume_file.record_in(content)

    def _slices_together(self) -> Iterator[list[tuple[tf.Variable, str, tf.Variable]]]:
        """Yields groups of (master, key in the resume file, slice), each at most `BYTES_AT_ONCE`.

        A master is a variable in checkpoints. Its slices are the variables in memory that have a
        wider type. Each group is read in one call. One call per variable would be slow, because
        TensorFlow prunes the whole graph for each new set of fetches. One call for all slices would
        need memory for a second copy of the weights.
        """
        group, size = [], 0
        for name, slices in self._graph.slices.items():
            for number, variable in enumerate(slices):
                bytes_of_slice = variable.shape.num_elements() * variable.dtype.size
                if group and size + bytes_of_slice > BYTES_AT_ONCE:
                    yield group
                    group, size = [], 0
                group.append((self._variables[name], f"{name}/{number}", variable))
                size += bytes_of_slice
        if group:
            yield group


def _publish(folder: str, model_dir: str) -> None:
    """Moves the files of a finished checkpoint into `model_dir`, resume state first, index last."""
    names = sorted(
        paths.list_names(folder),
        key=lambda name: (name.endswith(".index"), not name.endswith(".resume.npz")),
    )
    pairs = [[os.path.join(root, name) for root in (folder, model_dir)] for name in names]  # noqa: PTH118
    if paths.is_remote(model_dir):
        # Each file is verified before the next upload.
        for name, (source, target) in zip(names, pairs, strict=True):
            paths.copy(source, target)
            publishing.check_whole(model_dir, {name: object_facts.of_file(source)})
    else:
        for source, _ in pairs:
            publishing.to_disk(source)
        for source, target in pairs:
            tf.io.gfile.rename(source, target, overwrite=True)
        publishing.to_disk(model_dir)
    _remove(folder)


def _remove_leftovers(model_dir: str, step: int) -> None:
    """Removes the files of a run that was killed while saving."""
    names = paths.list_names(model_dir)
    whole = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    # Only this project's checkpoints have a resume state. Other incomplete checkpoints are kept,
    # because other programs may be writing them.
    ours = {name.removesuffix(".resume.npz") for name in names if name.endswith(".resume.npz")}
    again = None
    if paths.is_remote(model_dir):
        # A bucket's files are replaced one by one, and meanwhile the checkpoint does not count.
        again = os.path.basename(checkpoint_files.checkpoint_path(model_dir, step)) + ".index"  # noqa: PTH119
    else:
        publishing.remove_leftovers([model_dir])
    for name in names:
        path = os.path.join(model_dir, name)  # noqa: PTH118
        prefix = re.sub(r"\.(resume\.npz|data-\d{5}-of-\d{5})$", "", name)
        if prefix in ours - whole or name == again:
            paths.remove(path)
        elif name.startswith(_SAVING):
            _remove(path)


def _name_latest(model_dir: str, step: int) -> None:
    """Writes the file that TensorFlow reads to find the latest checkpoint."""
    steps = [s for s in checkpoint_files.steps(model_dir) if s != step]
    names = [f"model.ckpt-{s}" for s in [*steps, step]]
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    target = os.path.join(model_dir, "checkpoint")  # noqa: PTH118
    publishing.write_whole(target, "\n".join(lines) + "\n")


def _remove_checkpoint(path: str) -> None:
    """Removes the files of a checkpoint that is not retained.

    Raises:
      UserError: if a file cannot be removed.
    """
    try:
        # Remove the index first. Without an index, the remaining files do not count as a
        # checkpoint.
        for file in sorted(tf.io.gfile.glob(path + ".*"), key=lambda n: not n.endswith(".index")):
            tf.io.gfile.remove(file)
    except WRITE_ERRORS as error:
        raise UserError(
            f"the latest checkpoint is saved, but the old checkpoint {path} cannot be removed: "
            f"{write_reason(error)}. Fix this, or keep all checkpoints (run.keep_checkpoint_max = "
            "None), and start the same command again"
        ) from error


def _remove(folder: str) -> None:
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def _last_checkpoint(model_dir: str) -> str:
    """Returns a sentence that names the last checkpoint and says how to continue."""
    try:
        steps = checkpoint_files.steps(model_dir)
    except WRITE_ERRORS:  # whatever prevented writing may also prevent reading
        return f"{model_dir} cannot be read either; fix this, and start the same command again"
    last = checkpoint_files.checkpoint_path(model_dir, steps[-1]) if steps else None
    status = f"The last checkpoint, {last}, is intact" if last else "There is no checkpoint yet"
    return f"{status}; make room and start the same command again"


@contextlib.contextmanager
def explain_full_disk(model_dir: str) -> Iterator[None]:
    """Turns the write errors of a full disk into a UserError. Other errors pass unchanged."""
    try:
        yield
    except WRITE_ERRORS as error:
        if write_reason(error) != "the disk is full":
            raise
        raise UserError(f"the disk is full ({model_dir}). {_last_checkpoint(model_dir)}") from error


def configuration() -> dict[str, str]:
    """Returns name -> value as text, for all parameters that functions have read from gin so far.

    Credentials are masked. So they may differ between two starts of a run.
    """
    values: dict[str, str] = {}
    text = gin.operative_config_str(max_line_length=1_000_000)
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not line.startswith("#"):
            values[name] = saved_config.mask_value(name, value)
    return model_directory.comparable_values(values)


def save_configuration(model_dir: str) -> None:
    """Writes `configuration.json` and gin's operative config into the model directory."""
    path = os.path.join(model_dir, model_directory.CONFIGURATION_FILE)  # noqa: PTH118
    publishing.write_whole(path, model_directory.configuration_text(configuration()))
    save_operative_config(model_dir)


def save_prompts(model_dir: str, mixture: str | None, lengths: Mapping[str, int]) -> None:
    """Writes the prompts and the vocabulary of a mixture's prompted tasks, if it has any."""
    prompts = prompts_of_mixture(mixture, lengths)
    if prompts:
        model_directory.save_prompts(model_dir, prompts.to_json(), prompts.vocabulary)


def save_operative_config(model_dir: str) -> None:
    """Writes gin's operative config to two files, with credentials masked.

    See `t0.config.saved_config` for the files.
    """
    texts = saved_config.operative_texts()
    for name in (saved_config.OURS, saved_config.FILE):
        publishing.write_whole(os.path.join(model_dir, name), texts[name])  # noqa: PTH118


def warm_start(
    checkpoints: Checkpoints,
    graph: TrainingGraph,
    path: str,
    *,
    only: str = "",
    unfilled: Sequence[str] = (),
) -> list[str]:
    """Fills the variables of a run from an initial checkpoint.

    Args:
      checkpoints: the run's checkpoints.
      graph: the training graph.
      path: the initial checkpoint.
      only: a regular expression that the names of the variables to read match; "" for all.
      unfilled: regular expressions that match the names of variables which may keep their random
        values.

    Returns:
      lines for the user that describe the result.

    Raises:
      UserError: if the checkpoint cannot be read, if a variable has another shape in it, or if it
        has no value for a variable that `unfilled` does not match, and whose layer is not new.
    """
    checkpoint_variables = checkpoint_files.read(path)
    unfilled = [*unfilled, *patterns_of_new_layers(checkpoint_variables)]
    if only:
        checkpoint_variables = {
            name: value for name, value in checkpoint_variables.items() if re.search(only, name)
        }
    source_names = {
        name: mesh_utils.init_checkpoint_variable_mapping(name)
        for name in checkpoints.variables
        if mesh_utils.should_load_variable(name)
    }
    filled = {
        name: source for name, source in source_names.items() if source in checkpoint_variables
    }
    _check_shapes(checkpoints, path, checkpoint_variables, filled)
    missing = [name for name in graph.trained if name not in filled]
    unfilled_names = [name for name in missing if not any(re.search(x, name) for x in unfilled)]
    if unfilled_names:
        raise UserError(
            f"the initial checkpoint {path} leaves {len(unfilled_names)} of the model's "
            f"{len(graph.trained)} variables unfilled, such as {unfilled_names[0]}. Is it a "
            f"checkpoint of the configured model{_own_config(path)}? To leave them random, add "
            f'--gin_param="train_loop.unfilled_variables = {_patterns(unfilled_names)}"'
        )
    reader = tf.train.load_checkpoint(path)
    for name, source in filled.items():
        checkpoints.assign(name, np.asarray(reader.get_tensor(source)))
    step = checkpoint_files.global_step(path) if "global_step" in filled else 0
    lines = [restored_line(len(graph.trained) - len(missing), len(graph.trained), path, step)]
    lines += [f"left random: {', '.join(missing)}"] if missing else []
    slots = sum(name in filled for name in graph.slots)
    lines.append(slots_line(slots, len(graph.slots)))
    return lines


def patterns_of_new_layers(checkpoint_names: Iterable[str]) -> list[str]:
    """Returns patterns that match the variables of new layers.

    A new layer has a name in gin, and the checkpoint does not have variables with this name. The
    entry ("task_adapter", @DenseReluDense) of `make_layer_stack.layers` names a layer. Entries
    without a name belong to T5, so a checkpoint must have their variables.
    """
    layers = [
        layer
        for scope in ("", "encoder/", "decoder/")
        for layer in bound(f"{scope}make_layer_stack.layers", (), evaluate=False) or ()
        if isinstance(layer, list | tuple)
    ]
    in_checkpoint = "\n".join(checkpoint_names)
    return sorted(
        {
            f"/{re.escape(name)}/"
            for layer in layers
            for name in layer
            if isinstance(name, str) and f"/{name}/" not in in_checkpoint
        }
    )


def _patterns(names: Sequence[str]) -> list[str]:
    """Returns regular expressions that match names of variables, with a wildcard for block numbers.

    >>> _patterns(["encoder/block_000/adapter/wi", "encoder/block_001/adapter/wi"])
    ['^encoder/block_.*/adapter/wi$']
    """
    return sorted({f"^{re.sub('block_[0-9]+', 'block_.*', name)}$" for name in names})


def _own_config(path: str) -> str:
    """Returns a hint that names the operative config next to a checkpoint, if there is one."""
    config = operative_config.find_operative(path)
    if not config:
        return ""
    return f" (to use its own configuration: --gin_file={config} instead of the model's gin file)"


def _check_shapes(
    checkpoints: Checkpoints, path: str, checkpoint_variables: dict, filled: dict[str, str]
) -> None:
    variables = checkpoints.variables
    for name, source in sorted(filled.items()):
        shape, have = variables[name][0], checkpoint_variables[source][0]
        if shape != have:
            raise UserError(
                f"checkpoint {path} holds {source} as {list(have)}, but the configured model needs "
                f"{list(shape)}: the gin files describe another model{_own_config(path)}"
            )
