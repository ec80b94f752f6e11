"""Checks the flags of `t5_mesh_transformer` against each other, before TensorFlow is imported.

findings.check_all(FLAG_CHECKS, flags)      # UserError: --mode is for --use_model_api; ...
"""

from typing import Any

from t0.errors import UserError, say
from t0.run.findings import Check


def check_model_api(flags: Any) -> None:
    """Checks the flags that only exist with or without the Model API."""
    if flags.mode and not flags.use_model_api:
        raise UserError("--mode is for --use_model_api; with gin, set run.mode = '...'")
    if flags.checkpoint and flags.use_model_api:
        raise UserError(
            "--checkpoint cannot be used with --use_model_api: set --pretrained_model_dir"
        )
    if flags.use_model_api and not flags.mode:
        raise UserError("--use_model_api needs --mode")


def check_specification(flags: Any) -> None:
    """Checks for flags that a specification for the PyTorch engine cannot contain."""
    if flags.dry_run:
        if flags.save_spec:
            raise UserError(
                "--dry_run writes nothing, but --save_spec writes a file: use one of them"
            )
        return
    if not (flags.save_spec or flags.engine == "torch"):
        return
    prefix = "a specification is for the PyTorch engine, which"
    if flags.use_model_api:
        raise UserError(f"{prefix} has no Model API: leave out --use_model_api")
    if flags.tpu:
        raise UserError(f"{prefix} runs on GPUs and CPUs: leave out --tpu={flags.tpu}")
    if flags.export_hf and flags.engine != "torch":
        say(f"--export_hf is not saved: add it to python -m t0.torch {flags.save_spec}")


def check_stream(flags: Any) -> None:
    """Checks the flags that write the batches of a run."""
    if flags.write_stream and (flags.use_model_api or flags.save_spec or flags.engine == "torch"):
        raise UserError(
            "--write_stream only writes the batches of a run that gin configures: leave out "
            "--use_model_api, --save_spec and --engine"
        )
    if flags.stream_steps and not flags.write_stream:
        raise UserError(
            "--stream_steps selects the steps of --write_stream: add --write_stream=DIR"
        )


def check_steps(flags: Any) -> None:
    """Checks the flags that set the last step."""
    if flags.finetune_steps is not None and flags.epochs is not None:
        raise UserError("--finetune_steps and --epochs both set the last step: use one of them")
    for name in ("finetune_steps", "epochs"):
        value = flags[name].value
        if value is not None and value <= 0:
            raise UserError(f"--{name} is {value}; expected a number above 0")


FLAG_CHECKS: tuple[Check, ...] = (check_model_api, check_specification, check_stream, check_steps)
