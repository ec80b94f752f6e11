"""Checks what flags and gin bind: that a run reads it, and that its values are possible.

check_bindings(run, parsed)     # ["--beam_size has no effect in mode 'train'"]
check_values(run)               # UserError: evaluation.engine is 'jax'; expected ...
check_settings(run)             # UserError: infer.output_dir is not set
"""

from collections.abc import Callable, Iterator
from typing import Any

from t0.config import flag_table, parse
from t0.config import flags as command_flags
from t0.config.bindings import bound, typed_bindings
from t0.config.plain_data import is_plain, read_plain
from t0.errors import UserError
from t0.evaluation.settings import EvaluationSettings, first_records
from t0.feeding.data_spec import ChoiceLosses
from t0.inference.jobs import InferenceSettings
from t0.run import mesh_settings
from t0.run.parsed_run import ParsedRun
from t0.training.model_directory import Keep

# The gin parameters of this function are the types of weights and activations in a run with --tpu.
# Without --tpu, they are set to float32.
_TYPE_FUNCTION = "mesh_tensorflow.transformer.utils.get_variable_dtype"


def check_bindings(run: ParsedRun, parsed: parse.Config) -> list[str]:
    """Checks flags and bindings, and applies or rejects types that the command line binds.

    Without --tpu, `get_variable_dtype.activation_dtype` is ignored if a gin file binds it, because
    the published gin files are for TPUs. If the command line binds it, it has the same meaning as
    --activation_dtype.

    Args:
      parsed: the parsed gin files and bindings.

    Returns:
      a line for each flag or binding that the run does not read.
    """
    flags, mode = run.flags, run.mode
    bound_types = {
        parameter
        for _, selector, parameter in parse.command_line_bindings(parsed)
        if selector == _TYPE_FUNCTION and not flags.tpu
    }
    if "slice_dtype" in bound_types and bound("get_variable_dtype.slice_dtype") != "float32":
        raise UserError(
            "get_variable_dtype.slice_dtype is set, but without --tpu, weights are float32 in "
            "memory: leave it out"
        )
    notes = []
    if (
        "activation_dtype" in bound_types
        and mode not in flag_table.by_name("activation_dtype").modes
    ):
        notes = [
            f"get_variable_dtype.activation_dtype has no effect in mode '{mode}' without --tpu"
        ]
    elif "activation_dtype" in bound_types and not flags["activation_dtype"].present:
        flags["activation_dtype"].parse(
            command_flags.activation_dtype(bound("get_variable_dtype.activation_dtype"))
        )
    notes += command_flags.check_mode(flags, mode)
    if not flags.tpu:
        notes += mesh_settings.find_unread(parsed, mode)
    return [*notes, *parse.find_unread_params(parsed, mode)]


def check_objects(run: ParsedRun) -> None:
    """Checks that optimizer and schedule are objects, and not texts with their names."""
    del run  # gin has the values
    for parameter in ("optimizer", "learning_rate_schedule"):
        value = bound(f"run.{parameter}", evaluate=False)
        if isinstance(value, str):
            raise UserError(
                f"run.{parameter} is the text {value!r}; expected a class or function, as @NAME "
                "without quotes, such as @AdafactorOptimizer, @t0.AdamWOptimizer or "
                "@t0.cosine_with_warmup (docs/reference.md)"
            )


def check_values(run: Any) -> Iterator[UserError]:
    """Checks the type and range of each value that gin binds to a setting of this project.

    The annotation of a parameter or field is its type. The settings are not created, because a
    setting that is created is also written to the operative config.

    Yields:
      a fault for each wrong value.
    """
    del run  # gin has the values
    for name, kind, value in typed_bindings("t0"):
        if is_plain(kind):
            try:
                read_plain(value, kind, name)
            except ValueError as error:
                yield UserError(f"{error} (docs/reference.md)")


def check_settings(run: ParsedRun) -> None:
    """Checks the settings that the run's mode reads against each other.

    Settings that only our own engines read are checked by `evaluation_checks.check_mode`, because a
    setting that is created is also written to the operative config.
    """
    for settings in _SETTINGS.get(run.mode, ()):
        settings()
    if run.mode == "infer" and run.flags.tpu and InferenceSettings().configured:
        raise UserError(
            "runs/infer.gin is for runs without --tpu; on a TPU, use --gin_file=infer.gin"
        )


def _keep() -> Keep:
    return Keep(bound("run.keep_checkpoint_max"))


_SETTINGS: dict[str, tuple[Callable[[], Any], ...]] = {
    "train": (_keep, ChoiceLosses),
    "eval": (EvaluationSettings, first_records),
    "score_eval": (EvaluationSettings, first_records),
    "infer": (InferenceSettings,),
}
