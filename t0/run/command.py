"""Runs `t5_mesh_transformer` with parsed flags.

    run(config.flags.parse(argv), argv)

`run` configures the process and gin. With `--dry_run`, it then lists the configuration and stops.
Without `--dry_run`, it does the preflight checks, and then `modes` or `model_api` performs the run.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from t0.config import flags as command_flags
from t0.config.saved_config import mask_secrets, save_command
from t0.errors import UserError, original, say
from t0.run import configure, tpu_checks

# Flags that must have the same values in the caching command.
_TASK_FLAGS = ("module_import", "data_dir", "vocab")


def run(flags: Any, argv: Sequence[str], *, working_directory: bool = True) -> None:
    """Configures the process, does the preflight checks and performs the run.

    Args:
      flags: the parsed flags, see `t0.config.flags`.
      argv: the command line, which is saved in the model directory.
      working_directory: whether to search the working directory for gin files. Pass False for a
        command without --gin_file: the working directory may be a downloaded folder.

    Raises:
      UserError: a setting is wrong. Most errors are raised before any slow work starts.
    """
    if flags.mode and not flags.use_model_api:
        raise UserError("--mode is for --use_model_api; with gin, set run.mode = '...'")
    if flags.checkpoint and flags.use_model_api:
        raise UserError(
            "--checkpoint cannot be used with --use_model_api: set --pretrained_model_dir"
        )
    _check_specification(flags)
    if flags.write_stream and (flags.use_model_api or flags.save_spec or flags.engine == "torch"):
        raise UserError(
            "--write_stream only writes the batches of a run that gin configures: leave out "
            "--use_model_api, --save_spec and --engine"
        )
    if flags.stream_steps and not flags.write_stream:
        raise UserError(
            "--stream_steps selects the steps of --write_stream: add --write_stream=DIR"
        )
    tpu = None
    if flags.tpu and not (flags.dry_run or flags.save_spec or flags.write_stream):
        tpu = tpu_checks.check_machine(flags.tpu, zone=flags.tpu_zone, project=flags.gcp_project)
    _prepare(flags)
    from t0.compat import seqio
    from t0.config import parse
    from t0.run import model_api, preflight, run_files

    more = model_api.operative_config(flags) if flags.use_model_api else ()
    parsed = configure.parse_gin(flags, more, working_directory=working_directory)
    if not flags.use_model_api:
        parse.check_required(parsed, except_for=command_flags.macros_set_by_flags(flags))
    model_dir = run_files.model_dir(flags.model_dir if flags["model_dir"].present else None)
    flags["model_dir"].value = model_dir or flags.model_dir
    if flags.dry_run:
        if not flags.use_model_api:
            _print_notes(_check_bindings(flags, parsed, preflight.run_mode()))
        _list_configuration(flags, parsed)
        return
    # Cache folders are set after gin is parsed, because gin files may also set them.
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    if tpu:
        tpu_checks.check_run(tpu, model_dir=model_dir, **_describe_mesh(flags))
    if not flags.save_spec and not flags.write_stream:
        save_command(run_files.output_dir() or flags.model_dir, argv)
    if flags.use_model_api:
        model_api.run(flags)
    else:
        _run_with_gin(flags, parsed, argv, hosts_read=bool(tpu and tpu.is_remote))


def _prepare(flags: Any) -> None:
    configure.prepare(flags)
    configure.quieten(verbose=flags["verbosity"].present and flags.verbosity >= 0)


def configure_tasks(flags: Any) -> None:
    """Configures a process that reads the tasks of a run, and does nothing else of the run.

    Args:
      flags: the parsed flags, see `t0.config.flags`.

    Raises:
      UserError: a setting is wrong.
    """
    _prepare(flags)
    from t0.compat import seqio

    configure.parse_gin(flags)
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)


def _check_specification(flags: Any) -> None:
    """Raises a UserError for flags that a specification for the PyTorch engine cannot contain."""
    if not (flags.save_spec or flags.engine == "torch") or flags.dry_run:
        if flags.dry_run and flags.save_spec:
            raise UserError(
                "--dry_run writes nothing, but --save_spec writes a file: use one of them"
            )
        return
    prefix = "a specification is for the PyTorch engine, which"
    if flags.use_model_api:
        raise UserError(f"{prefix} has no Model API: leave out --use_model_api")
    if flags.tpu:
        raise UserError(f"{prefix} runs on GPUs and CPUs: leave out --tpu={flags.tpu}")
    if flags.export_hf and flags.engine != "torch":
        say(f"--export_hf is not saved: add it to python -m t0.torch {flags.save_spec}")


# The gin parameters of this function are the types of weights and activations in a run with --tpu.
# Without --tpu, they are set to float32.
_TYPE_FUNCTION = "mesh_tensorflow.transformer.utils.get_variable_dtype"


def _check_bindings(flags: Any, parsed: Any, mode: str) -> list[str]:
    """Checks flags and bindings, and applies or rejects types that the command line binds.

    Without --tpu, `get_variable_dtype.activation_dtype` is ignored if a gin file binds it, because
    the published gin files are for TPUs. If the command line binds it, it has the same meaning as
    --activation_dtype.

    Returns:
      a line for each flag or binding that the run does not read.
    """
    from t0.config import parse
    from t0.config.bindings import bound
    from t0.run import mesh_settings

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
        and mode not in command_flags.MODE_FLAGS["activation_dtype"]
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


def _describe_mesh(flags: Any) -> dict[str, Any]:
    """Returns arguments for `tpu_checks.check_run`: the mesh's core count and the checkpoint."""
    from t0.config.bindings import bound
    from t0.mesh.topology import SLICES, topology

    if flags.use_model_api:
        cores = topology(flags.tpu_topology).cores if flags.tpu_topology in SLICES else None
        return {"cores": cores, "checkpoint": flags.pretrained_model_dir}
    checkpoint = flags.checkpoint or bound("run.init_checkpoint")
    return {"cores": tpu_checks.mesh_cores(), "checkpoint": checkpoint}


def _run_with_gin(flags: Any, parsed: Any, argv: Sequence[str], *, hosts_read: bool) -> None:
    from t0.compat import gin, t5_mesh, tf
    from t0.config.bindings import bound, explain_unset
    from t0.mesh import devices
    from t0.run import modes, preflight, stream_writing, weights

    mode = preflight.run_mode()
    notes = _check_bindings(flags, parsed, mode)
    settings = {name: flags[name].value for name in _TASK_FLAGS if flags[name].present}
    settings = {k: [v] if isinstance(v, str) else v for k, v in settings.items()}
    _print_notes(
        [
            *notes,
            *preflight.check_mixtures(
                settings,
                on_tpu=bool(flags.tpu),
                hosts_read=hosts_read,
                allow_stale=flags.allow_stale_cache,
            ),
        ]
    )
    vocabulary = t5_mesh.get_vocabulary()
    if flags.export_hf:
        weights.check_export(flags, vocabulary, trains=mode == "train")
    arguments, checkpoint = weights.find(flags, vocabulary)
    arguments["vocabulary"] = vocabulary
    arguments |= modes.engine_arguments(tpu=flags.tpu)
    # The arguments are bound in gin, so that gin does not evaluate the values that they replace.
    # They are also passed to the function, so that the saved operative config does not contain
    # facts about this machine.
    for name, value in arguments.items():
        gin.bind_parameter(f"run.{name}", value)
    _bind_flags(flags, mode)
    gin.finalize()
    mesh_shape = bound("run.mesh_shape")
    _print_notes(
        preflight.check_run(
            flags.model_dir,
            vocabulary=vocabulary,
            mesh_shape=mesh_shape,
            checkpoint=checkpoint,
            any_format=weights.read_elsewhere(flags),
        )
    )
    tpu_arguments = {n: flags[n].value for n in ("tpu_job_name", "tpu", "gcp_project", "tpu_zone")}
    arguments |= {"model_dir": flags.model_dir, **tpu_arguments}
    if flags.save_spec:
        _save_specification(flags.save_spec, mode, arguments, checkpoint, argv)
        return
    if flags.write_stream:
        stream_writing.write_stream(flags.write_stream, arguments, flags.stream_steps)
        return
    if hosts_read:
        preflight.check_hosts(mode, arguments)
    try:
        modes.carry_out(modes.ConfiguredRun(mode, arguments, checkpoint))
    except (ValueError, RuntimeError) as error:
        unset = explain_unset(error)
        user_error = UserError(unset) if unset else devices.explain_undivided(error, mesh_shape)
        if user_error is None:
            raise
        raise user_error from error
    except tf.errors.OpError as error:
        if not isinstance(original(error), UserError):
            print("reading or computing failed: checking the caches", file=sys.stderr)
            preflight.check_caches(mode)
        raise
    if flags.export_hf:
        weights.export(flags, vocabulary)


def _bind_flags(flags: Any, mode: str) -> None:
    """Binds the gin parameters that correspond to flags in this mode."""
    from t0.compat import gin
    from t0.inference.jobs import InferenceSettings
    from t0.mesh import devices
    from t0.run import train_steps

    if mode == "infer" and flags.tpu and InferenceSettings().configured:
        raise UserError(
            "runs/infer.gin is for runs without --tpu; on a TPU, use --gin_file=infer.gin"
        )
    for name, (value, _) in command_flags.gin_parameters(flags, mode).items():
        if name.startswith("get_variable_dtype.") or name == "t0.score_eval.dtype":
            value = devices.activation_dtype(value).name
        gin.bind_parameter(name, value)
        if mode == "eval" and name.startswith("get_variable_dtype."):  # also for ranked tasks
            gin.bind_parameter("t0.score_eval.dtype", value)
    if flags.finetune_steps is not None or flags.epochs is not None:
        last, explanation = train_steps.plan_steps(
            flags.model_dir, finetune_steps=flags.finetune_steps, epochs=flags.epochs
        )
        _print_notes([explanation])
        gin.bind_parameter("run.train_steps", last)


def _save_specification(
    path: str, mode: str, arguments: dict[str, Any], checkpoint: str | None, argv: Sequence[str]
) -> None:
    """Writes the run's specification as JSON, for another engine."""
    from t0.config import plain_data
    from t0.files import publishing
    from t0.run import specify

    spec = specify.run_spec(mode, arguments, checkpoint)
    if mode == "eval" and spec.infer:
        spec = dataclasses.replace(spec, judge=specify.judging_words(spec, argv))
    text = plain_data.to_json(spec)
    publishing.write_whole(path, text + "\n")
    say(f"the run specification is in {path}; nothing was run")


def _list_configuration(flags: Any, parsed: Any) -> None:
    from t0.config import listing
    from t0.run import modes, preflight, run_files

    mode = preflight.run_mode()
    command_bindings: listing.CommandBindings = {} if flags.tpu else modes.local_parameters()
    command_bindings |= command_flags.gin_parameters(flags, mode)
    if mode == "train" and flags.checkpoint:
        command_bindings |= {"run.init_checkpoint": (flags.checkpoint, "--checkpoint")}
    for name in ("finetune_steps", "epochs"):
        if mode == "train" and flags[name].present:
            later = f"--{name}={flags[name].value}, counted when the run begins"
            command_bindings |= {"run.train_steps": (later, f"--{name}")}
    print("dry run: nothing is written or trained", file=sys.stderr)
    lines = [f"# Model directory: {flags.model_dir}"]
    if run_files.output_dir():
        lines.append(f"# Output directory: {run_files.output_dir()}")
    for line in [*lines, *listing.text(parsed, command_bindings).splitlines()]:
        print(mask_secrets(line))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
