"""Carries out `t5_mesh_transformer`: from parsed flags to a run."""

import functools
import importlib
import logging as python_logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import logging

from t0 import compat
from t0.cli import mesh_flags
from t0.errors import UserError, unknown_name
from t0.sources import set_data_dirs

# Names whose values never go into the record of a command line; tokens_per_batch is none of them.
_SECRET = r"(?:password|secret|api[_-]?key|credential|token(?!s|i))\w*"
_SECRET_VALUE = re.compile(rf"({_SECRET}\s*=\s*)\S.*", re.I | re.S)
_SECRET_FLAG = re.compile(rf"--?[\w./-]*{_SECRET}$", re.I)
_LOGIN = re.compile(r"(://)[^/@\s]+@")
# What Mesh TensorFlow's own modes find goes into event files, and into these notes.
_RESULTS = ("Saving dict for global step", "%s at step %d: %.3f")
# Flags that a command which caches the same tasks needs, too.
_OF_TASKS = ("module_import", "data_dir", "vocab")


def run(flags: Any, argv: Sequence[str]) -> None:
    """Parses gin, checks what can be checked, and runs.

    Args:
      flags: parsed, see `t0.cli.mesh_flags`.
      argv: the command line, for the record.

    Raises:
      UserError: for whatever the user can mend, before heavy work where possible.
    """
    if flags.mode and not flags.use_model_api:
        raise UserError("--mode belongs to --use_model_api; with gin say run.mode = '...'")
    if flags.checkpoint and flags.use_model_api:
        raise UserError("--checkpoint is not for --use_model_api, which has --pretrained_model_dir")
    if flags.data_dir:
        set_data_dirs(flags.data_dir)
    compat.apply()
    from t0.tasks import set_vocabulary

    set_vocabulary(flags.vocab)
    _import_modules(flags.module_import)
    _quiet(verbose=flags["verbosity"].present and flags.verbosity >= 0)
    mesh_flags.hand_to_mesh(flags)

    from t0.compat import seqio

    if flags.t5_tfds_data_dir:
        seqio.set_tfds_data_dir_override(flags.t5_tfds_data_dir)
    parsed = _parse_gin(flags)
    if flags.dry_run:
        from t0.cli import dry_run

        print("\n".join(map(without_secrets, dry_run.lines(flags, parsed))))
        return
    from t0.training import run_files

    _save_command(run_files.output_dir() or flags.model_dir, argv)
    # After gin, as a configuration may set cache folders of its own.
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    if flags.use_model_api:
        from t0.cli import model_api

        model_api.run(flags)
    else:
        _run_with_gin(flags)


def _parse_gin(flags: Any) -> Any:
    # Their gin names must be known before a configuration is parsed.
    import t0.inference  # noqa: F401
    from t0.scoring import evaluate  # noqa: F401
    from t0.training import config, loop, macros, run_files  # noqa: F401

    files = list(flags.gin_file or [])
    if flags.use_model_api:
        from t0.cli import model_api

        files += model_api.operative_config(flags)
    parsed = config.parse(
        files,
        flags.gin_param or [],
        location_prefixes=mesh_flags.gin_folders(flags),
        also_deprecated=flags.additional_deprecated_gin_references,
        skip_all_unknown=flags.skip_all_gin_unknowns,
    )
    config.print_findings(parsed)
    if not flags.use_model_api:
        macros.check_required(parsed, but=mesh_flags.macros_said(flags))
    said = run_files.model_dir(flags.model_dir if flags["model_dir"].present else None)
    flags["model_dir"].value = said or flags.model_dir
    return parsed


def _run_with_gin(flags: Any) -> None:
    from t0.cli import weights
    from t0.compat import gin, mesh_utils, t5_mesh
    from t0.mesh import batch, devices
    from t0.training import config, gin_errors, loop, start

    _check_mixtures(flags)
    vocabulary = t5_mesh.get_vocabulary()
    if flags.export_hf:
        weights.check_export(flags, vocabulary, trains=start.run_mode() == "train")
    arguments, checkpoint = weights.find(flags)
    arguments["vocabulary"] = vocabulary
    if config.bound("run.train_model_fn") is None:
        arguments["train_model_fn"] = loop.train_model
    if not flags.tpu:
        for name, value in devices.LOCAL_TYPES.items():
            gin.bind_parameter(name, value)
        mesh, note = devices.local_arguments()
        arguments |= mesh
        print(note, file=sys.stderr)
        _score_here(checkpoint)
        _infer_here(checkpoint)
        if start.run_mode() == "perplexity_eval":
            _tell_perplexity()
        ours = config.bound("run.train_model_fn") in (None, loop.train_model)
        if ours and start.run_mode() == "train":
            _train_here()
    # Bound, so that gin evaluates nothing that they replace, and passed as arguments, so that the
    # operative config, which a run saves, says nothing of this machine.
    for name, value in arguments.items():
        gin.bind_parameter(f"run.{name}", value)
    if start.run_mode() == "train":
        _bind_training(flags)
    _bind_inference(flags)
    gin.finalize()
    mesh_shape = config.bound("run.mesh_shape")
    for note in start.check_run(
        flags.model_dir, vocabulary=vocabulary, mesh_shape=mesh_shape, checkpoint=checkpoint
    ):
        print(note, file=sys.stderr)
    places = {n: flags[n].value for n in ("tpu_job_name", "tpu", "gcp_project", "tpu_zone")}
    try:
        mesh_utils.run(model_dir=flags.model_dir, **places, **arguments)
    except (ValueError, RuntimeError) as error:
        unset = gin_errors.explain_unset(error)
        mistake = UserError(unset) if unset else batch.explain_undivided(error, mesh_shape)
        if mistake is None:
            raise
        raise mistake from error
    if flags.export_hf:
        weights.export(flags, vocabulary)


def _bind_training(flags: Any) -> None:
    """Binds what the flags say of training."""
    from t0.compat import gin
    from t0.training import steps

    for name in mesh_flags.OF_TRAINING:
        if flags[name].present:
            gin.bind_parameter(f"train_loop.{name}", flags[name].value)
    if flags.finetune_steps is not None or flags.epochs is not None:
        planned = steps.planned(
            flags.model_dir, finetune_steps=flags.finetune_steps, epochs=flags.epochs
        )
        print(planned.explanation, file=sys.stderr)
        gin.bind_parameter("run.train_steps", planned.last)


def _bind_inference(flags: Any) -> None:
    """Binds what the flags say of inference."""
    from t0.compat import gin
    from t0.inference import InferenceSettings
    from t0.training import start

    given = [name for name in mesh_flags.OF_INFERENCE if flags[name].present]
    infers = start.run_mode() == "infer"
    if not infers and (only := {"shard_id", "num_shards"} & set(given)):
        raise UserError(f"--{min(only)} belongs to inference: --gin_file=runs/infer.gin")
    for name in given if infers else ():
        gin.bind_parameter(f"t0.infer.{name}", flags[name].value)
    if infers and flags.tpu and InferenceSettings().configured:
        raise UserError(
            "runs/infer.gin predicts without --tpu; on a TPU --gin_file=infer.gin decodes a file"
        )


def _train_here() -> None:
    """Makes Mesh TensorFlow hand a run's settings to our own loop, and build no estimator."""
    from t0.training.settings import Settings

    compat.replace_in_mesh("get_estimator", Settings.of_run)


def _score_here(checkpoint: str | None) -> None:
    """Puts our rank evaluation in the place of Mesh TensorFlow's, for runs without a TPU.

    What its evaluation by decoding finds is written down.
    """
    from t0.scoring import decoded, evaluate

    def eval_model(
        estimator: Any, *args: Any, eval_with_score: bool = False, **kwargs: Any
    ) -> None:
        # Rank evaluation needs an encoder; a language model's scores stay Mesh TensorFlow's.
        if eval_with_score and estimator.keywords["model_type"] == "bitransformer":
            evaluate.eval_model(estimator, *args, checkpoint=checkpoint, **kwargs)
        elif eval_with_score:
            published(estimator, *args, eval_with_score=True, **kwargs)
        else:
            decoded.eval_model(published, estimator, *args, **kwargs)

    published = compat.replace_in_mesh("eval_model", eval_model)


def _tell_perplexity() -> None:
    """Makes mode `perplexity_eval` print perplexities, which Mesh TensorFlow does not."""
    from t0.compat import mesh_utils
    from t0.scoring.perplexity import telling

    compat.replace_in_mesh("get_estimator", telling(mesh_utils.get_estimator))


def _infer_here(checkpoint: str | None) -> None:
    """Puts our inference in the place of Mesh TensorFlow's, for runs without a TPU."""
    from t0.inference import jobs, predict
    from t0.training import start

    def infer_model(estimator: Any, *args: Any, **kwargs: Any) -> None:
        if jobs.takes_over(estimator.keywords["model_type"]):
            predict.infer_model(estimator, *args, checkpoint=checkpoint, **kwargs)
        else:  # a language model's, or with functions of the user's own
            *others, step = args
            published(estimator(), *others, -1 if step is None else step, **kwargs)

    def postponed(**keywords: Any) -> Any:
        return functools.partial(build, **keywords)

    published = compat.replace_in_mesh("infer_model", infer_model)
    if start.run_mode() == "infer":
        build = compat.replace_in_mesh("get_estimator", postponed)


def _check_mixtures(flags: Any) -> None:
    from t0.feeding import checks
    from t0.training import start
    from t0.training.config import bound

    read_by = start.MODES[start.run_mode()]
    for function in ("get_vocabulary", *filter(None, [read_by])):
        name = bound(f"{function}.mixture_or_task_name")
        if name is None:
            continue
        checks.known_mixture(name)
        if function != read_by:
            continue
        if bound(f"{function}.use_cached", False):
            settings = {name: flags[name].value for name in _OF_TASKS if flags[name].present}
            settings = {k: [v] if isinstance(v, str) else v for k, v in settings.items()}
            checks.require_cached(name, function=function, settings=settings)
        split = bound("run.dataset_split", "train")
        checks.require_split(name, split)
        # Only training loses what is cut of a target.
        lengths = bound("run.sequence_length") if start.run_mode() == "train" else None
        for note in checks.notes(name, split, lengths):
            print(note, file=sys.stderr)


def _import_modules(modules: Sequence[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module + ".").startswith(error.name + "."):
                known = ["t0.seqio_tasks", "t0.recipes", "t5.data.mixtures"]
                where = "--module_import looks on Python's path and in the working directory."
                raise unknown_name("module", module, known, where) from error
            raise


def _quiet(*, verbose: bool) -> None:
    from t0.compat import tf1 as tf

    logger = python_logging.getLogger("tensorflow")
    logger.propagate = False  # where the root logger has a handler, each note would come twice
    if not verbose:
        logger.addFilter(_worth_showing)
    tf.logging.set_verbosity(tf.logging.INFO)
    logging.set_verbosity(logging.INFO if verbose else logging.ERROR)
    tf.disable_v2_behavior()


def _worth_showing(record: python_logging.LogRecord) -> bool:
    """Leaves out TensorFlow's, Mesh's and T5's notes: hundreds of lines on a good run.

    They show with --verbosity=0.
    """
    message = str(record.msg)
    if message.startswith(_RESULTS):
        return True
    return record.levelno >= python_logging.ERROR and "Object was never used" not in message


def masked(argv: Sequence[str]) -> str:
    """Returns a command line as text, with the values of passwords, keys and the like left out.

    >>> masked(["run", "--hf_token=abc", "--gin_param=tokens_per_batch = 4"])
    "run '--hf_token=***' '--gin_param=tokens_per_batch = 4'"
    """
    words = []
    for before, word in zip(["", *argv], argv, strict=False):
        words.append("***" if _SECRET_FLAG.match(before) else without_secrets(word))
    return shlex.join(words)


def without_secrets(text: str) -> str:
    """Returns one binding, flag or address without the password or key in it."""
    return _LOGIN.sub(r"\1***@", _SECRET_VALUE.sub(r"\1***", text))


def _save_command(model_dir: str, argv: Sequence[str]) -> None:
    from t0.compat import tf

    folder = os.path.join(model_dir, "commands")  # noqa: PTH118
    try:
        tf.io.gfile.makedirs(folder)
        taken = set(tf.io.gfile.listdir(folder))
        names = ("command", *(f"command.{number}" for number in range(1, len(taken) + 1)))
        name = next(name for name in names if name not in taken)
        with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:  # noqa: PTH118
            file.write(masked(argv) + "\n")
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"the model directory {model_dir} cannot be written: {error}") from error
