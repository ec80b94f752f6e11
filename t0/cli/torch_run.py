"""Runs a specification on PyTorch, in one process or in the processes that `torchrun` starts.

    torchrun --nproc_per_node=8 -m t0.torch spec.json
    torchrun --nproc_per_node=8 -m t0.torch --model_dir=/models/tiny --gin_file=... [flags]
    python -m t0.torch spec.json --device=cpu

`t5_mesh_transformer ... --save_spec=spec.json` writes a specification. Instead of this file, the
flags of `t5_mesh_transformer` can be given. Then the first process of the run starts a helper
process, which imports TensorFlow and makes a specification from the flags. The first process sends
this specification to the other processes of the run, so none of them imports TensorFlow.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from t0.child_processes import module_command
from t0.cli.arguments import Number
from t0.config.plain_data import ActivationType, NotNegative
from t0.config.saved_config import save_command
from t0.config.specification import RunSpec, from_json, read_value
from t0.errors import UserError, install_command, interruptible, reading, reported
from t0.feeding.reading import content_of
from t0.files import paths
from t0.files.untrusted import check_buckets
from t0.torch import memory

COMMAND = "t0.torch"
_KEPT = "the last checkpoint, if any, is kept, and the same command resumes from there"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of this command's own flags."""
    parser = argparse.ArgumentParser(
        prog="python -m t0.torch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device", default="auto", help="cuda, cpu, or auto: CUDA if there is a GPU")
    add(
        "--recompute",
        choices=memory.CHOICES,
        default="auto",
        help="compute activations twice, which saves memory; auto: only if the run does not fit",
    )
    add(
        "--keep_gathered",
        choices=memory.CHOICES,
        default="auto",
        help="keep weights of other processes for a step, which saves time; auto: if it fits",
    )
    add(
        "--gradients",
        choices=memory.GRADIENTS,
        default="auto",
        help="fused: update each block in the backward pass; offload: sum in host memory; "
        "auto: keep if the run fits",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the blocks at the first step, which takes minutes; needs a C++ compiler",
    )
    add(
        "--no_tf32",
        action="store_true",
        help="compute float32 products without TF32 (Ampere and later GPUs)",
    )
    add(
        "--timeout_minutes",
        action=Number,
        kind=NotNegative,
        default=30.0,
        help="how long a process waits for the others, which may be writing (default: 30)",
    )
    add("--export_mtf", metavar="DIR", help="write the last checkpoint here for Mesh TensorFlow")
    add("--export_hf", metavar="DIR", help="write the last checkpoint here for Hugging Face")
    add("--bucket", action="append", help="a bucket that spec.json may name: gs://NAME")
    add("--engine", choices=["torch"], help=argparse.SUPPRESS)  # always this engine
    return parser


def main(argv: Sequence[str]) -> None:
    """Runs the training, evaluation or prediction that a command line describes.

    Raises:
      UserError: if a flag or a setting is wrong, or the run fails for another known reason.
    """
    arguments, words = make_parser().parse_known_args(argv)
    if not words:
        raise UserError("no run is given; expected spec.json, or the flags of t5_mesh_transformer")
    if {"-v=0", "-v=1", "--verbosity=0", "--verbosity=1"} & {*words}:
        logging.set_verbosity(logging.INFO)
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError(f"PyTorch is not installed: {install_command('torch')}") from error
    from t0.torch import evaluation, processes, torch_session

    with processes.join_processes(arguments.device, arguments.timeout_minutes) as joined:
        if arguments.export_hf and not _is_file(words):
            words = [*words, f"--export_hf={arguments.export_hf}"]  # to check this flag too
        text = _read_specification(words, joined)
        joined.check_equal("the specification", text)
        spec = from_json(text, RunSpec)
        if _is_file(words):
            check_buckets(dataclasses.asdict(spec), words[0], "add --bucket={bucket}")
        if joined.size > 1:
            joined.check_equal("the cache", _describe_caches(spec))
        if joined.device.type == "cuda":
            torch.set_float32_matmul_precision("highest" if arguments.no_tf32 else "high")
        modes = {
            "score_eval": evaluation.score_eval,
            "infer": evaluation.predict,
            "eval": functools.partial(
                evaluation.evaluate,
                judge=None if _is_file(words) else functools.partial(judge_texts, words),
            ),
        }
        if spec.mode in modes:
            _check_evaluates(arguments, spec.mode)
            modes[spec.mode](spec, joined)
            return
        dtype = spec.training.get("activation_dtype", "auto")
        dtype = read_value(dtype, ActivationType, "training.activation_dtype")
        compute = torch_session.ComputeOptions(
            processes.choose_activation_type(dtype, joined.device),
            recompute=arguments.recompute,
            keep_gathered=arguments.keep_gathered,
            gradients=arguments.gradients,
            compiled=arguments.compile,
            export_mtf=arguments.export_mtf,
            export_hf=arguments.export_hf,
        )
        if joined.first and "://" not in spec.model_dir:
            save_command(spec.model_dir, sys.argv)
        register = None if _is_file(words) else functools.partial(register_tasks, words)
        torch_session.train(spec, joined, compute, register)


def _check_evaluates(arguments: argparse.Namespace, mode: str) -> None:
    """Raises a UserError if a flag for training is set in a mode that does not train."""
    defaults = make_parser().parse_args([])
    for name in ("recompute", "keep_gathered", "gradients", "compile", "export_mtf", "export_hf"):
        if getattr(arguments, name) != getattr(defaults, name):
            raise UserError(f"--{name} is for training; the mode is {mode!r}: leave it out")


def _read_specification(words: Sequence[str], world: Any) -> str:
    """Returns a specification's text, which is read from a file or made from flags by process 0."""
    if _is_file(words):
        with reading(words[0]):
            return paths.read_text(words[0])
    return world.broadcast_text(lambda: _make_specification(words))


def _describe_caches(spec: RunSpec) -> str:
    """Describes the contents of the caches that the run reads on this machine."""
    sets = [spec.data, spec.validation]
    tasks = [task for data in sets if data for task in data.tasks]
    tasks += [job.task for job in spec.infer.jobs if job.task] if spec.infer else []
    return "\n".join(content_of(task.cache_files) for task in tasks)


def _is_file(words: Sequence[str]) -> bool:
    return len(words) == 1 and not words[0].startswith("-")


def _make_specification(words: Sequence[str]) -> str:
    """Makes a specification from flags in a separate process, and returns its text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        command = module_command("t0.cli.mesh_transformer", "--engine=torch", *words)
        command.append(f"--save_spec={path}")
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode or not path.exists():
            raise SystemExit(done.returncode or 2)  # that process has printed the reason
        return path.read_text(encoding="utf-8")


def register_tasks(words: Sequence[str]) -> None:
    """Registers the tasks of a run in the process that makes their batches.

    The run has printed the notes about its flags. They are printed again only before an error.

    Args:
      words: the flags of the run.
    """
    from t0.cli.run_flags import parse_run

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            flags = parse_run([COMMAND, "--engine=torch", *words])
            from t0.run import command

            command.configure_tasks(flags)
    except BaseException:
        sys.stderr.write(said.getvalue())
        raise


def judge_texts(words: Sequence[str], folder: str) -> None:
    """Computes the metrics of decoded texts in this process, in which TensorFlow sees no GPU.

    Args:
      words: the flags of the run.
      folder: the folder of the texts.
    """
    from t0.cli.run_flags import parse_run
    from t0.compat import tf
    from t0.run import command

    tf.config.set_visible_devices([], "GPU")  # PyTorch uses the GPUs
    command.judge_texts(parse_run([COMMAND, *words]), folder)


def console_entry_point() -> None:
    """Runs `python -m t0.torch`."""
    with reported(COMMAND), interruptible(_KEPT):
        main(sys.argv[1:])
