"""Runs `t5_mesh_transformer` with parsed flags.

    run(config.flags.parse(argv), argv)

`run` configures the process and gin, and checks the run. With `--dry_run`, it only lists the
configuration. Otherwise `modes` or `model_api` performs the run.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from t0.config import flags as command_flags
from t0.config.saved_config import mask_secrets, save_command
from t0.errors import UserError, original, say
from t0.run import configure, tpu_checks
from t0.run.findings import Findings
from t0.run.flag_checks import FLAG_CHECKS


def run(flags: Any, argv: Sequence[str], *, working_directory: bool = True) -> None:
    """Configures the process, checks the run and performs it.

    Args:
      flags: the parsed flags, see `t0.config.flags`.
      argv: the command line, which is saved in the model directory.
      working_directory: whether to search the working directory for gin files. Pass False for a
        command without --gin_file: the working directory may be a downloaded folder.

    Raises:
      UserError: a setting is wrong. Most errors are raised before any slow work starts.
    """
    findings = Findings()
    findings.check_all(FLAG_CHECKS, flags)
    findings.notes()
    tpu = None
    if flags.tpu and not (flags.dry_run or flags.save_spec or flags.write_stream):
        # Before TensorFlow is imported, because this sets how TensorFlow finds the TPU.
        tpu = tpu_checks.check_machine(flags.tpu, zone=flags.tpu_zone, project=flags.gcp_project)
    _prepare(flags)
    from t0.compat import seqio
    from t0.config import parse
    from t0.run import initial_checkpoint, model_api, modes, run_files
    from t0.run.parsed_run import ParsedRun, run_mode

    more = model_api.operative_config(flags) if flags.use_model_api else ()
    parsed = configure.parse_gin(flags, more, working_directory=working_directory)
    if not flags.use_model_api:
        parse.check_required(parsed, except_for=command_flags.macros_set_by_flags(flags))
    model_dir = run_files.model_dir(flags.model_dir if flags["model_dir"].present else None)
    flags["model_dir"].value = model_dir or flags.model_dir
    if flags.dry_run:
        _list_configuration(flags, parsed)
        return
    # Cache folders are set after gin is parsed, because gin files may also set them.
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    if flags.use_model_api:
        _check_tpu(tpu, flags, model_dir)
        model_api.run(flags, argv)
        return
    parsed_run = ParsedRun(flags, run_mode())
    configured = _configure(parsed_run, parsed, argv, tpu, model_dir)
    if configured is None:
        return
    with _explaining(parsed_run):
        modes.carry_out(configured)
    if flags.export_hf:
        initial_checkpoint.export(flags, parsed_run.vocabulary)


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


def _check_tpu(tpu: tpu_checks.Machine | None, flags: Any, model_dir: str | None) -> None:
    """Checks that the run fits the TPU, if it has one."""
    if tpu:
        tpu_checks.check_run(tpu, model_dir=model_dir, **_describe_mesh(flags))


def _save_command(flags: Any, argv: Sequence[str]) -> None:
    from t0.run import run_files

    if not flags.save_spec and not flags.write_stream:
        save_command(run_files.output_dir() or flags.model_dir, argv)


def _describe_mesh(flags: Any) -> dict[str, Any]:
    """Returns arguments for `tpu_checks.check_run`: the mesh's core count and the checkpoint."""
    from t0.config.bindings import bound
    from t0.mesh.topology import SLICES, topology

    if flags.use_model_api:
        cores = topology(flags.tpu_topology).cores if flags.tpu_topology in SLICES else None
        return {"cores": cores, "checkpoint": flags.pretrained_model_dir}
    checkpoint = flags.checkpoint or bound("run.init_checkpoint")
    return {"cores": tpu_checks.mesh_cores(), "checkpoint": checkpoint}


def _configure(
    run: Any,
    parsed: Any,
    argv: Sequence[str],
    tpu: tpu_checks.Machine | None,
    model_dir: str | None,
) -> Any | None:
    """Checks a run and completes its configuration.

    Returns:
      the `ConfiguredRun`; None if the command only writes a specification or a stream.
    """
    from t0.compat import gin
    from t0.run import host_checks, initial_checkpoint, stream_writing
    from t0.run.configured_run import ConfiguredRun

    flags = run.flags
    arguments = _check(run, parsed, tpu, model_dir)
    _save_command(flags, argv)
    checkpoint_arguments, checkpoint = initial_checkpoint.find(run)
    arguments |= {"vocabulary": run.vocabulary, **checkpoint_arguments}
    # The arguments are bound in gin, so that gin does not evaluate the values that they replace.
    # They are also passed to the function, so that the saved operative config does not contain
    # facts about this machine.
    for name, value in arguments.items():
        gin.bind_parameter(f"run.{name}", value)
    gin.finalize()
    tpu_arguments = {n: flags[n].value for n in ("tpu_job_name", "tpu", "gcp_project", "tpu_zone")}
    arguments |= {"model_dir": flags.model_dir, **tpu_arguments}
    if flags.save_spec:
        _save_specification(flags, run.mode, arguments, checkpoint)
        return None
    if flags.write_stream:
        stream_writing.write_stream(flags.write_stream, arguments, flags.stream_steps)
        return None
    if tpu and tpu.is_remote:
        host_checks.check_hosts(run.mode, arguments)
    return ConfiguredRun(run.mode, arguments, checkpoint, command_flags.evaluation_words(flags))


@contextlib.contextmanager
def _explaining(run: Any) -> Iterator[None]:
    """Explains errors that come from gin's values, from the mesh or from damaged caches."""
    from t0.compat import tf
    from t0.config.bindings import bound, explain_unset
    from t0.mesh import devices
    from t0.run import data_checks

    try:
        yield
    except (ValueError, RuntimeError) as error:
        unset = explain_unset(error)
        mesh_shape = bound("run.mesh_shape")
        user_error = UserError(unset) if unset else devices.explain_undivided(error, mesh_shape)
        if user_error is None:
            raise
        raise user_error from error
    except tf.errors.OpError as error:
        if not isinstance(original(error), UserError):
            print("reading or computing failed: checking the caches", file=sys.stderr)
            data_checks.read_whole_caches(run)
        raise


def _check(
    run: Any, parsed: Any, tpu: tpu_checks.Machine | None, model_dir: str | None
) -> dict[str, Any]:
    """Checks a run, prints notes, and returns the arguments of `run` that depend on the engine."""
    from t0.compat import gin
    from t0.run import checks, mesh_modes
    from t0.run.binding_checks import check_bindings

    findings = Findings()
    findings.check(check_bindings, run, parsed)  # before the values of the flags are bound
    arguments = mesh_modes.engine_arguments(tpu=run.flags.tpu)
    for name, value in arguments.items():
        gin.bind_parameter(f"run.{name}", value)
    _bind_flags(run.flags, run.mode)
    findings.check_all(checks.CHECKS, run)
    findings.check(_check_tpu, tpu, run.flags, model_dir)
    if tpu and tpu.is_remote:
        findings.check_all(checks.HOST_CHECKS, run)
    findings.notes()  # only a run without faults is worth the slow checks
    findings.check_all(checks.SLOW_CHECKS, run)
    _print_notes(findings.notes())
    _bind_steps(run)
    return arguments


def _bind_flags(flags: Any, mode: str) -> None:
    """Binds the gin parameters that correspond to flags in this mode."""
    from t0.compat import gin
    from t0.mesh import devices

    for name, (value, _) in command_flags.gin_parameters(flags, mode).items():
        if name.startswith("get_variable_dtype.") or name == "t0.score_eval.dtype":
            value = devices.activation_dtype(value).name
        gin.bind_parameter(name, value)
        if mode == "eval" and name.startswith("get_variable_dtype."):  # also for ranked tasks
            gin.bind_parameter("t0.score_eval.dtype", value)


def _bind_steps(run: Any) -> None:
    """Binds the last step, if a flag sets the number of steps."""
    from t0.compat import gin
    from t0.run import train_steps

    steps = {name: run.flags[name].value for name in ("finetune_steps", "epochs")}
    if all(value is None for value in steps.values()):
        return
    last, explanation = train_steps.plan_steps(
        run.flags.model_dir, checkpoint=run.named_checkpoint, **steps
    )
    _print_notes([explanation])
    gin.bind_parameter("run.train_steps", last)


def _save_specification(
    flags: Any, mode: str, arguments: dict[str, Any], checkpoint: str | None
) -> None:
    """Writes the run's specification as JSON, for another engine."""
    from t0.config import plain_data
    from t0.files import publishing
    from t0.run import spec_from_gin

    path = flags.save_spec
    spec = spec_from_gin.run_spec(mode, arguments, checkpoint)
    if mode == "eval" and spec.infer:
        spec = dataclasses.replace(spec, judge=_judging_words(spec, flags))
    if mode == "train":
        spec = dataclasses.replace(spec, eval_words=command_flags.evaluation_words(flags))
    text = plain_data.to_json(spec)
    publishing.write_whole(path, text + "\n")
    say(f"the run specification is in {path}; nothing was run")


def _judging_words(spec: Any, flags: Any) -> tuple[str, ...]:
    """Returns the command line that computes the metrics of texts that another engine decodes."""
    judging = _judging_flags(flags, spec.infer.folder)
    return tuple(map(mask_secrets, command_flags.words_of(judging)))


def judge_texts(flags: Any, folder: str) -> None:
    """Computes the metrics of texts that another engine has decoded.

    Args:
      flags: the parsed flags of the run that decoded them.
      folder: the folder of the texts.
    """
    judging = _judging_flags(flags, folder)
    run(judging, ["t5_mesh_transformer", *command_flags.words_of(judging)])


def _judging_flags(flags: Any, folder: str) -> Any:
    """Changes the flags of a run that decodes texts into those of a run that judges them."""
    for name in ("save_spec", "engine"):
        flags[name].unparse()
    binding = command_flags.bindings_of({"t0.evaluation.decoded": folder})
    flags["gin_param"].parse(binding)
    return flags


def _list_configuration(flags: Any, parsed: Any) -> None:
    from t0.config import dry_run
    from t0.run import mesh_modes, run_files
    from t0.run.binding_checks import check_bindings
    from t0.run.parsed_run import ParsedRun, run_mode

    mode = run_mode()
    if not flags.use_model_api:
        _print_notes(check_bindings(ParsedRun(flags, mode), parsed))
    command_bindings: dry_run.CommandBindings = {} if flags.tpu else mesh_modes.local_parameters()
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
    for line in [*lines, *dry_run.text(parsed, command_bindings).splitlines()]:
        print(mask_secrets(line))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
