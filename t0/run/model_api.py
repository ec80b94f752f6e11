"""Runs the modes of T5's Model API, for `t5_mesh_transformer --use_model_api`.

Without a TPU, our own loop trains. For all other modes, Mesh TensorFlow's code runs.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files
from t0.checkpoints.operative_config import FILE, plain_bindings
from t0.compat import gin, t5_mesh, t5_models, tf
from t0.config import flags as command_flags
from t0.config.bindings import bound
from t0.config.flag_table import MODEL_API_MODES
from t0.config.saved_config import save_command
from t0.errors import UserError
from t0.feeding import data_spec
from t0.mesh import devices
from t0.run import checkpoint_checks, initial_checkpoint, run_arguments, run_files
from t0.run.binding_checks import check_values
from t0.run.findings import After, Check, Findings
from t0.training import estimator, mesh_session
from t0.training.graph import TrainingSpec

_ONE_CHECKPOINT = ("finetune", "export_predict", "export_score")
_OF_A_MIXTURE = ("train", "finetune", "eval")
_TRAINING = ("train", "finetune")


def operative_config(flags: Any) -> list[str]:
    """Returns a list with a gin file of the model's bindings; [] for a new model.

    If --gin_file names the model's operative config, gin reads this file. Otherwise gin reads a
    temporary copy of its bindings, because the file may come with a downloaded checkpoint.

    Raises:
      UserError: there is no operative config next to the checkpoints, or it cannot be read.
    """
    if flags.mode in (None, "train"):
        return []
    path = os.path.join(_folder(flags), FILE)  # noqa: PTH118
    if not tf.io.gfile.exists(path):
        raise UserError(f"{path} not found: --mode={flags.mode} reads the model's sizes from it")
    if path in (flags.gin_file or []):
        return [path]
    copy = Path(tempfile.mkdtemp()) / FILE
    copy.write_text(plain_bindings(path), encoding="utf-8")
    return [str(copy)]


def _parse_bindings(model_dir: str) -> None:
    """Replaces T5's function, which parses the operative config with its imports."""
    text = plain_bindings(os.path.join(model_dir, FILE), with_companion=False)  # noqa: PTH118
    with gin.unlock_config():
        gin.parse_config(text, skip_unknown=t5_mesh.DEPRECATED_GIN_REFERENCES)


def _folder(flags: Any) -> str:
    return flags.pretrained_model_dir if flags.mode == "finetune" else flags.model_dir


def run(flags: Any, argv: Sequence[str]) -> None:
    """Runs `flags.mode` with a `t5.models.MtfModel`.

    T5 parses the model's operative config again. It parses the file itself only if --gin_file names
    the file.

    Raises:
      UserError: checkpoint flags contradict each other, or a mixture, checkpoint or vocabulary is
        missing or does not fit the run.
    """
    if os.path.join(_folder(flags), FILE) in (flags.gin_file or []):  # noqa: PTH118
        _run(flags, argv)
        return
    with compat.replaced("t5_mtf_model._parse_operative_config", _parse_bindings):
        _run(flags, argv)


def _run(flags: Any, argv: Sequence[str]) -> None:
    findings = Findings()
    findings.check_all(_CHECKS, flags)
    for note in findings.notes():
        print(note, file=sys.stderr)
    save_command(run_files.output_dir() or flags.model_dir, argv)
    steps, trains = _checkpoint_steps(flags), flags.mode in _TRAINING
    total_steps = flags.train_steps
    if flags.mode != "train":
        total_steps += checkpoint_files.select_steps(_folder(flags), steps)[-1]
    if trains and not flags.tpu:
        for name, value in _flag_parameters(flags).items():
            gin.bind_parameter(name, value)
        mesh = devices.local_mesh(devices.visible_gpus())
        with (
            compat.replaced("mesh_utils.get_estimator", TrainingSpec.from_estimator_arguments),
            compat.replaced("mesh_utils.train_model", _train),
        ):
            _carry_out(_model(flags, total_steps, **mesh), flags, steps)
    else:
        with compat.replaced("mesh_utils.train_model", estimator.train_model):
            types = _flag_parameters(flags)
            types = {name: devices.activation_dtype(value).name for name, value in types.items()}
            # Without a TPU, the model first binds float32, and then parses these bindings. So they
            # replace float32.
            bindings = [f"{name} = '{value}'" for name, value in types.items()]
            model = _model(flags, total_steps, extra_gin_bindings=bindings)
            _carry_out(model, flags, steps)
    if flags.export_hf:
        initial_checkpoint.export(flags, t5_mesh.get_vocabulary(_mixture(flags)))


def _mixture(flags: Any) -> str | None:
    return flags.mixture_or_task if flags.mode in _OF_A_MIXTURE else bound("%MIXTURE_NAME")


def _check_steps(flags: Any) -> None:
    _checkpoint_steps(flags)


def _check_flags(flags: Any) -> list[str]:
    return command_flags.check_mode(flags, MODEL_API_MODES[flags.mode])


def _check_mixture(flags: Any) -> None:
    if mixture := _mixture(flags):
        data_spec.known_mixture(mixture)


def _check_export(flags: Any) -> None:
    if flags.export_hf:
        vocabulary = t5_mesh.get_vocabulary(_mixture(flags))
        initial_checkpoint.check_export(flags, vocabulary, trains=flags.mode in _TRAINING)


def _check_checkpoint(flags: Any) -> None:
    if flags.mode != "train":
        latest = checkpoint_files.select_steps(_folder(flags), _checkpoint_steps(flags))[-1]
        checkpoint = checkpoint_files.checkpoint_path(_folder(flags), latest)
        vocabulary = t5_mesh.get_vocabulary(_mixture(flags))
        checkpoint_checks.check_vocabulary(checkpoint, vocabulary)


def _check_batch(flags: Any) -> None:
    if flags.mode in _TRAINING and not flags.tpu:
        devices.check_batch(
            flags.batch_size,
            sequence_length=_lengths(flags),
            mesh_shape=devices.local_mesh(devices.visible_gpus())["mesh_shape"],
            layout_rules="batch:batch",
        )


_CHECKS: tuple[Check | After, ...] = (
    check_values,
    _check_steps,
    _check_flags,
    _check_mixture,
    After((_check_mixture,), _check_export),
    After((_check_steps, _check_mixture), _check_checkpoint),
    _check_batch,
)


def _flag_parameters(flags: Any) -> dict[str, Any]:
    mode = MODEL_API_MODES[flags.mode]
    return {name: v for name, (v, _) in command_flags.gin_parameters(flags, mode).items()}


def _train(  # noqa: PLR0913 (the signature that MtfModel calls)
    spec: TrainingSpec,
    vocabulary: Any,
    sequence_length: Mapping[str, int],
    batch_size: int,
    dataset_fn: Callable[..., Any],
    steps: int,
    ensemble_inputs: int | None,
    *,
    dataset_split: str,
) -> None:
    """Trains with our own loop. Ignores arguments that the loop's settings already contain."""
    del vocabulary, sequence_length, batch_size, ensemble_inputs
    options = mesh_session.LoopOptions(steps)
    mesh_session.train(spec, options, dataset_fn, dataset_split=dataset_split)


def _lengths(flags: Any) -> dict[str, int]:
    return {"inputs": flags.input_sequence_length, "targets": flags.target_sequence_length}


def _model(flags: Any, total_steps: int, **more: Any) -> Any:
    return t5_models.MtfModel(
        tpu_job_name=flags.tpu_job_name,
        tpu=flags.tpu,
        gcp_project=flags.gcp_project,
        tpu_zone=flags.tpu_zone,
        tpu_topology=flags.tpu_topology,
        model_parallelism=flags.model_parallelism,
        model_dir=flags.model_dir,
        batch_size=flags.batch_size,
        sequence_length=_lengths(flags),
        # The default schedule needs the total number of steps, which T5's model does not pass.
        learning_rate_schedule=run_arguments.schedule(
            bound("run.learning_rate_schedule"), total_steps
        ),
        **more,
    )


def _carry_out(model: Any, flags: Any, steps: Any) -> None:
    mode = flags.mode
    sampling = {
        "beam_size": flags.beam_size,
        "temperature": flags.temperature,
        "keep_top_k": flags.keep_top_k,
    }
    if mode == "train":
        model.train(flags.mixture_or_task, flags.train_steps)
    elif mode == "finetune":
        model.finetune(flags.mixture_or_task, flags.train_steps, flags.pretrained_model_dir, steps)
    elif mode == "eval":
        model.eval(flags.mixture_or_task, steps, flags.eval_summary_dir, flags.eval_split)
    elif mode == "predict":
        model.predict(flags.input_file, flags.output_file, steps, **sampling)
    elif mode == "score":
        files = {"scores_file": flags.output_file, "checkpoint_steps": steps}
        model.score(flags.input_file, flags.target_file, **files)
    else:
        scored = mode == "export_score"
        model.export(flags.export_dir, steps, eval_with_score=scored, **sampling)


def _checkpoint_steps(flags: Any) -> int | str | list[int]:
    specific = flags.checkpoint_mode == "specific"
    if bool(flags.checkpoint_steps) != specific:
        raise UserError("--checkpoint_steps and --checkpoint_mode=specific need each other")
    try:
        steps = [int(step) for step in flags.checkpoint_steps]
    except ValueError:
        raise UserError(
            f"--checkpoint_steps must be numbers, got {flags.checkpoint_steps}"
        ) from None
    if flags.mode in _ONE_CHECKPOINT:
        if flags.checkpoint_mode == "all" or len(steps) > 1:
            raise UserError(f"--mode={flags.mode} needs exactly one checkpoint")
        return steps[0] if specific else -1
    if specific:
        return steps
    return {"latest": -1, "all": "all"}[flags.checkpoint_mode]
