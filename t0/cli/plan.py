"""`t0 plan`: estimates the memory and time of a run from flags of `t5_mesh_transformer`.

    t0 plan --gin_file=runs/t0_train.gin --gin_file=mesh/v3-512.gin
    t0 plan --engine=torch --gpu=a100-80 --gpus=8 --gin_file=runs/t0_3b.gin
    t0 plan --config=run.yaml --gpu=a100-80        # the run of `t0 train --config=run.yaml`

The run is on a TPU slice, or on GPUs with `--engine=torch`. The plan needs no TPU, no checkpoint,
no cached task and no network, but a config file of `t0 train` names a checkpoint, whose sizes are
read. If no mesh file is set, it uses the slice in the run file's header.
"""

import argparse
import json
import logging
import math
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.cli.arguments import Number
from t0.config import flags as command_flags
from t0.config.flag_table import CACHE_FLAGS
from t0.config.plain_data import Count, NotNegative, Positive, Share
from t0.errors import UserError
from t0.files.untrusted import read_yaml
from t0.text_tables import terminal_width, wrap_text
from t0.torch.gpus import GPUS, MEASURED_UTILISATION
from t0.torch.memory import GRADIENTS

_SWITCHES = {
    "exact": "lower the whole model instead of using formulas; may take minutes",
    "json": "print one JSON object",
}
# Former switches, which are accepted with a note.
_FORMER = {
    "fast": "is now the default",
    **dict.fromkeys(("every_block", "every_slice"), "is now part of --exact"),
}
_UTILISATION = 0.4
_GPUS = [gpu.name for gpu in GPUS]
# Flags of `t5_mesh_transformer` that a plan reads, in addition to the flags that configure gin.
# `--help` shows them.
_READ = ("engine", "finetune_steps", "checkpoint", "base")
_SHOWN = {*_READ, "gin_file", "gin_param", "module_import", "vocab", "data_dir"}
_SHOWN |= {"gin_location_prefix", "gin_search_paths"}
# Macros that may be missing here, because a plan reads neither checkpoints nor data.
_OPTIONAL_MACROS = {"MODEL_DIR", "MIXTURE_OR_TASK_NAME", "INIT_CHECKPOINT"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 plan` and those of `t5_mesh_transformer`."""
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name in _FORMER:
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    axes = "rank plans: tpu=v3-128,v3-256 model_parallelism=4,8 tokens_per_microbatch=1024,2048"
    parser.add_argument("--sweep", nargs="+", action="extend", metavar="AXIS=V,V", help=axes)
    parser.add_argument(
        "--utilisation",
        action=Number,
        kind=Share,
        help="share of peak FLOP/s (0.4; in the table of all GPUs, as measured: 0.34)",
    )
    price = "price of a TPU core, or with --engine=torch of a GPU, for an hour; prints the cost"
    parser.add_argument("--price", action=Number, kind=NotNegative, metavar="MONEY", help=price)
    parser.add_argument(
        "--start_step", action=Number, kind=Count, metavar="N", help="step to continue from"
    )
    names = ", ".join(_GPUS)
    parser.add_argument("--gpu", metavar="NAME", help=f"with --engine=torch: {names} (all of them)")
    parser.add_argument(
        "--gpus", action=Number, kind=Positive, help="number of GPUs on all machines (1)"
    )
    parser.add_argument(
        "--gradients", choices=GRADIENTS, help="with --engine=torch: where gradients stay (auto)"
    )
    parser.add_argument("--train_config", help=argparse.SUPPRESS)
    add_run_flags(parser)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t5_mesh_transformer`. `--help` only shows those that configure the run."""
    group = parser.add_argument_group("flags of t5_mesh_transformer")
    all_flags = command_flags.command_flags()
    for name in all_flags:
        text = all_flags[name].help.partition(";\n")[0] if name in _SHOWN else argparse.SUPPRESS
        spellings = [f"--{name}", f"--no{name}"] if all_flags[name].boolean else [f"--{name}"]
        spellings += [
            f"--{other}" for other in CACHE_FLAGS if name in CACHE_FLAGS and other != name
        ]
        group.add_argument(
            *spellings, dest="run_words", action=_Word, nargs="?", help=text, metavar="..."
        )
    parser.set_defaults(run_words=[])


def reworded(words: Sequence[str]) -> list[str]:
    """Rewrites --gin.NAME=VALUE, and --config of `t0 train`, as flags that argparse can parse."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?", type=Path, const=Path())
    args, others = parser.parse_known_args(list(command_flags.gin_words_as_params(words)))
    if args.config is None:
        return others
    if args.config == Path():  # without a value, which is an error of the verb's parser
        return ["--config", *others]
    content = read_yaml(args.config, count_values=True) if args.config.is_file() else None
    is_training = isinstance(content, Mapping) and "mixture" in content
    return [f"--{'train_' * is_training}config={args.config}", *others]


class _Word(argparse.Action):
    """Stores the original text of a flag, which `command_flags.parse` parses later."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        word = option_string if values is None else f"{option_string}={values}"
        namespace.run_words = [*namespace.run_words, word]


def main(args: argparse.Namespace) -> int:
    """Computes and prints the plan, or the sweep over several plans."""
    for name, text in _FORMER.items():
        if getattr(args, name):
            print(f"note: --{name} {text}", file=sys.stderr)
    args.exact |= args.every_block or args.every_slice
    with tempfile.TemporaryDirectory() as folder:
        if args.train_config:
            from t0.cli import train

            args.run_words = [*train.planned_words(args.train_config, folder), *args.run_words]
        return _plan(args)


def _plan(args: argparse.Namespace) -> int:
    flag_values = run_flags(args, "t0 plan", more=_READ)
    args.base = flag_values.base
    _check_engine_flags(args, flag_values.engine)
    if flag_values.engine == "torch":
        return _plan_on_gpus(args, flag_values)
    configure_run(flag_values)
    start_step = _bind_steps(flag_values, args.start_step)
    from t0.mesh import plan as planning

    utilisation = _UTILISATION if args.utilisation is None else args.utilisation
    options = {"exact": args.exact, "utilisation": utilisation, "start_step": start_step}
    if args.sweep:
        rows = planning.sweep(planning.parse_axes(args.sweep), **options)
        for plan in filter(None, (row["plan"] for row in rows)):
            _add_cost(plan, args.price, plan["run"].get("core_hours"), "the run", "core")
        print(json.dumps(rows) if args.json else _wrapped(planning.sweep_text(rows)))
        return 0
    plan = planning.plan_configured_run(**options)
    lines = _add_cost(plan, args.price, plan["run"].get("core_hours"), "the run", "core")
    print(json.dumps(plan) if args.json else _wrapped(planning.plan_text(plan), *lines))
    return 0


def _plan_on_gpus(args: argparse.Namespace, flag_values: Any) -> int:
    """Plans a run of the PyTorch engine."""
    if args.price is not None and not args.gpu:
        raise UserError(f"--price needs --gpu, one of {', '.join(_GPUS)}")
    configure_run(flag_values, slice_=False)
    from t0.compat import gin
    from t0.run import gpu_plan, spec_from_gin

    if args.base:
        gin.bind_parameter("t0.adapter.base", args.base)
    # The steps of an adapter count from 0, whatever the step of its base is.
    first = 0 if spec_from_gin.configured_adapter() else None
    start_step = _bind_steps(flag_values, first)
    gpus, gradients = 1 if args.gpus is None else args.gpus, args.gradients or "auto"
    default = _UTILISATION if args.gpu else MEASURED_UTILISATION
    utilisation = default if args.utilisation is None else args.utilisation
    if not args.gpu:
        rows = gpu_plan.cards_plan(gpus, utilisation, gradients)
        print(json.dumps(rows) if args.json else gpu_plan.cards_text(rows, utilisation))
        return 0
    plan = gpu_plan.gpu_plan(args.gpu, gpus, utilisation, gradients, start_step)
    lines = _add_cost(plan, args.price, plan["run"].get("gpu_hours"), "the run", "GPU")
    print(json.dumps(plan) if args.json else _wrapped(gpu_plan.plan_text(plan), *lines))
    return 0


def _wrapped(*texts: str) -> str:
    """Joins texts, and wraps their lines to the terminal's width."""
    return wrap_text("\n".join(texts), terminal_width())


def _add_cost(
    plan: dict[str, Any], price: float | None, hours: float | None, work: str, device: str
) -> list[str]:
    """Adds the cost to a plan, and returns a line about the cost; [] if there is no price."""
    if price is None:
        return []
    if hours is None:
        raise UserError(
            "--price needs the time of a run, which this plan does not have. Plan a training run "
            "on a device whose bfloat16 FLOP/s are known"
        )
    plan["cost"] = {"price": price, "hours": hours, "cost": hours * price, "of": work}
    return [f"cost of {work}: {hours * price:,.2f} ({hours:,.1f} {device}-hours at {price:g})"]


# Flag that the plans of only one engine read -> this engine.
_ENGINE_OF_FLAG = {
    **dict.fromkeys(("sweep", "exact", "start_step"), "mesh"),
    **dict.fromkeys(("gpu", "gpus", "gradients", "base"), "torch"),
}


def _check_engine_flags(args: argparse.Namespace, engine: str) -> None:
    """Raises a UserError for a flag that this kind of plan (engine or sweep) does not read."""
    if args.price is not None and not 0 < args.price < math.inf:
        raise UserError(f"--price {args.price:g}: expected the price of an hour, above 0")
    if args.sweep and args.exact:
        raise UserError("--exact cannot be used with --sweep, which only uses formulas")
    for name, other in _ENGINE_OF_FLAG.items():
        if other != engine and getattr(args, name) not in (None, False):
            kind = "GPUs with PyTorch: add" if engine == "mesh" else "TPUs: remove"
            raise UserError(f"--{name} is for plans of {kind} --engine=torch")


def _bind_steps(flag_values: Any, start_step: int | None) -> int | None:
    """Binds the initial checkpoint and the last step in gin; returns the first step.

    Args:
      flag_values: the run's flags.
      start_step: the step to continue from; None for the step of the initial checkpoint.
    """
    from t0.compat import gin
    from t0.config.bindings import bound
    from t0.mesh.plan import step_of_checkpoint

    if flag_values.checkpoint:
        gin.bind_parameter("run.init_checkpoint", flag_values.checkpoint)
    if flag_values.finetune_steps is None:
        return start_step
    if flag_values.finetune_steps < 1:
        raise UserError(
            f"--finetune_steps is {flag_values.finetune_steps}; expected a number above 0"
        )
    if bound("run.mode", "train") != "train":
        raise UserError("--finetune_steps is for training, but run.mode is not 'train'")
    if start_step is None:
        start_step = step_of_checkpoint(bound("run.init_checkpoint"))
    gin.bind_parameter("run.train_steps", start_step + flag_values.finetune_steps)
    return start_step


def run_flags(args: argparse.Namespace, command: str, more: Collection[str] = ()) -> Any:
    """Returns the parsed flags of `t5_mesh_transformer` in another command's command line.

    Args:
      args: the parsed command line of the other command.
      command: the name of the other command.
      more: the names of flags that the command reads, in addition to the flags that configure gin.

    Raises:
      UserError: a flag is set that would change the run, but that the command does not read.
    """
    flag_values = command_flags.parse([command, *args.run_words])
    command_flags.check_planned(flag_values, command, more)
    return flag_values


def configure_run(flag_values: Any, *, reads_data: bool = False, slice_: bool = True) -> None:
    """Configures gin from the flags. No checkpoint is read.

    Args:
      flag_values: the flags of `t5_mesh_transformer`.
      reads_data: whether the run reads data.
      slice_: whether the run is for a TPU slice. The default slice is in the run file's header.
    """
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    from t0.config import gin_files, parse
    from t0.run import binding_checks, configure
    from t0.run.findings import Findings

    mesh = None
    if slice_ and not any("tpu_topology" in binding for binding in flag_values.gin_param or []):
        folders = command_flags.gin_folders(flag_values)
        mesh = gin_files.slice_of_header(flag_values.gin_file or [], folders)
    if mesh:
        print(f"note: --gin_file={mesh}, from the run file's header", file=sys.stderr)
    # A plan needs no tasks. The default module registers T5's own tasks, and its import takes
    # seconds.
    modules = (
        flag_values.module_import if reads_data or flag_values["module_import"].present else ()
    )
    configure.prepare(flag_values, modules)
    parsed = configure.parse_gin(flag_values, [mesh] if mesh else [])
    not_needed = _OPTIONAL_MACROS - {"MIXTURE_OR_TASK_NAME"} if reads_data else _OPTIONAL_MACROS
    not_needed = not_needed | command_flags.macros_set_by_flags(flag_values)
    parse.check_required(parsed, except_for=not_needed, undefined=False)
    findings = Findings()
    findings.check(binding_checks.check_values, flag_values)
    findings.notes()
