"""Runs many command lines of the installed commands for the price of one import of TensorFlow.

A child process imports what every command imports, or other modules that are named, then forks for
each command line that it reads, so that a command starts in milliseconds and still has a process of
its own. The recipe's test runs the installed commands themselves.

    python -m tests.helpers.command_server MODULE...
    # {"argv": ["t0", "tasks"], "cwd": DIR, "out": FILE, "err": FILE}
    # -> {"pid": 123}, and {"pid": 123, "status": 0} at its end
"""

import atexit
import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path

from tests.mutations import TEST_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
# What commands import in any case, in this order. One that moved costs time and nothing else.
IMPORTED_FIRST = (
    "t0.run.command",
    "t0.run.model_api",
    "t0.run.modes",
    "t0.run.task_evaluation",
    "t0.seqio_tasks",
    "t0.training.mesh_session",
    "t5.models",
)
# What most pipelines have TensorFlow's autograph convert, half a second and more a command. A fork
# finds it converted. One that moved costs time and nothing else, too.
CONVERTED_FIRST = (
    "dataclasses:is_dataclass",
    "mesh_tensorflow.transformer.dataset:ensure_dataset_eos.<locals>.<lambda>",
    "mesh_tensorflow.transformer.dataset:ensure_dataset_eos.<locals>._ensure_eos",
    "mesh_tensorflow.transformer.dataset:trim_and_pad_dataset.<locals>.<lambda>",
    "mesh_tensorflow.transformer.dataset:trim_and_pad_dataset.<locals>._trim_and_pad",
    "mesh_tensorflow.transformer.utils:_filter_features",
    "seqio.preprocessors:_append_to_innermost_axis",
    "seqio.preprocessors:append_eos.<locals>.<lambda>",
    "seqio.preprocessors:append_eos.<locals>._maybe_add_eos",
    "seqio.preprocessors:tokenize_impl",
    "seqio.utils:_GrainMapFn.__call__.<locals>.<lambda>",
    "seqio.utils:_GrainMapFn._map_fn_with_special_kwargs",
    "seqio.utils:add_kwargs_to_transform",
    "seqio.utils:trim_dataset.<locals>.<lambda>",
    "seqio.utils:trim_dataset.<locals>._trim",
    "seqio.vocabularies:SentencePieceVocabulary._encode_tf",
    "seqio.vocabularies:Vocabulary.encode_tf",
    "t5.data.preprocessors:rank_classification.<locals>.make_examples",
    "tensorflow_text:SentencepieceTokenizer.tokenize",
)


def entry_points():
    """The module and the function of each command that `setup.py` installs."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    return {name: (module, function) for name, module, function in _SCRIPT.findall(text)}


_SCRIPT = re.compile(r'^ *"(\w+) = ([\w.]+):(\w+)",$', re.M)


@dataclasses.dataclass(frozen=True)
class Finished:
    """What a command line came to."""

    status: int
    out: str
    err: str
    operative: str  # gin's operative config when it ended


class CommandServer:
    """The parent's side: starts the server, runs command lines through it."""

    def __init__(self, environment, imported=IMPORTED_FIRST):
        self._folder = Path(tempfile.mkdtemp(prefix="t0_commands_"))
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *imported],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *argv,
        program="t5_mesh_transformer",
        cwd=None,
        environment=(),
        interrupt_at=None,
        interrupt_by=signal.SIGINT,
        as_root=True,
    ):
        """Runs `program ARGV`; sends Ctrl-C once its output holds `interrupt_at`.

        Without `as_root` the modes of files count for it, whoever runs the tests.

        A program is an installed command or a function without arguments, "module:function".
        """
        self._count += 1
        kinds = ("out", "err", "gin")
        out, err, operative = (self._folder / f"{self._count}.{kind}" for kind in kinds)
        words = [program, *argv]
        files = {"out": str(out), "err": str(err), "gin": str(operative)}
        job = {"argv": words, "cwd": str(cwd or self._folder), **files}
        job["as_root"] = as_root
        job["test"] = os.environ.get(TEST_VARIABLE)
        job["environment"] = {name: str(value) for name, value in dict(environment).items()}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        pid = json.loads(self._server.stdout.readline())["pid"]
        if interrupt_at:
            _interrupt(pid, out, err, interrupt_at, interrupt_by)
        status = json.loads(self._server.stdout.readline())["status"]
        config = operative.read_text() if operative.exists() else ""
        return Finished(status, out.read_text(), err.read_text(), config)

    def close(self):
        self._server.stdin.close()
        self._server.wait()


def _interrupt(pid, out, err, awaited, by):
    """Sends a signal to a command once it has printed `awaited`, unless it ends before."""
    while awaited not in out.read_text():
        if not _send(pid, 0):
            return
        time.sleep(0.1)
    # Python drops an exception that is raised in a finalizer: then a user presses Ctrl-C again.
    sends = _send(pid, by)
    while sends and by == signal.SIGINT and _send(pid, 0):
        if "Exception ignored in" in err.read_text():
            _send(pid, by)
            return
        time.sleep(0.2)


def _send(pid, number):
    """Sends a signal; returns whether there is such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _redirected(path, number):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)


def _command(job):
    _redirected(job["out"], 1)
    _redirected(job["err"], 2)
    os.chdir(job["cwd"])
    if not job["as_root"]:
        from tests.helpers import capabilities

        capabilities.give_up()
    os.environ.update(job["environment"])
    if job["test"]:  # tests.mutations asks which lines a test executes
        from tests.mutations import coverage_plugin

        coverage_plugin.start(job["test"])
        atexit.register(coverage_plugin.save)
    sys.argv = job["argv"]
    program = sys.argv[0]
    module, function = program.split(":") if ":" in program else entry_points()[program]
    try:
        status = getattr(importlib.import_module(module), function)()
    except SystemExit as exit:
        status = exit.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if gin := sys.modules.get("gin"):
        Path(job["gin"]).write_text(gin.operative_config_str())
    # What Python does when it exits, but without taking apart each object of TensorFlow's modules,
    # for which the kernel would copy every page of the server's memory.
    atexit._run_exitfuncs()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def convert_first(names=CONVERTED_FIRST):
    """Fills the cache of TensorFlow's autograph, without an operation, thus without a thread."""
    from tensorflow.python.autograph.core import converter
    from tensorflow.python.autograph.impl import api

    context = converter.ProgramContext(options=converter.STANDARD_OPTIONS)
    for name in names:
        for function in _functions(name):
            api._TRANSPILER.transform(function, context)


def _functions(name):
    """The functions "module:qualified name"; those within a function get empty closures."""
    module, _, path = name.partition(":")
    outer, *within = path.split(".<locals>.")
    with contextlib.suppress(AttributeError):
        function = functools.reduce(getattr, outer.split("."), sys.modules.get(module))
        function = inspect.unwrap(function)
        codes = [function.__code__]
        for part in within:
            constants = [constant for code in codes for constant in code.co_consts]
            codes = [x for x in constants if getattr(x, "co_name", None) == part]
        for code in codes:
            cells = tuple(types.CellType() for _ in code.co_freevars)
            yield types.FunctionType(code, function.__globals__, None, None, cells)


def _serve(imported):
    for name in imported:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if "tensorflow" in sys.modules:
        convert_first()
    gc.collect()
    gc.freeze()  # a child that collected garbage would write to, and so copy, every page
    for line in sys.stdin:
        job = json.loads(line)
        Path(job["out"]).touch()
        pid = os.fork()
        if pid == 0:
            # The server's pipes are not the command's.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            # A test run in the background of a shell has Ctrl-C ignored, and hands that on.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _command(job)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
