"""Kills commands, goes on, and compares bytes: `python -m tests.kills`.

python -m tests.kills --kills=300 --seed=4
python -m tests.kills --kinds=train,score --kills=40
python -m tests.kills --every_call --kinds=convert     # each write, rename, fsync, unlink: once

Each kind is run once without a kill, for its time, its files and its calls. Then it is started,
killed with SIGKILL, and started again until it ends: the files must be those of the whole run, and
nothing may be left beside them or in the temporary folder. What is killed is the process, its
group, one of its workers, or whoever is about to write, rename, sync or remove a file. Processes
are forked from one that has imported what they need.
"""

import argparse
import atexit
import collections
import contextlib
import dataclasses
import gc
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.equality import snapshot
from tests.kills import calls
from tests.kills.kinds import KINDS, Kind, World

# Files that say when something was done, or how often a command was started.
_OF_A_START = (".trainer", "commands/")
# Longer than a whole run by this much: a command that was killed must still end.
_PATIENCE_SECONDS = 120.0


@dataclasses.dataclass
class Whole:
    """A run that nothing killed: its files, its calls on them, and its seconds."""

    files: dict
    calls: list[str]
    seconds: float


# What a start changes in a record: the first step of each start has no pace, and the list of own
# checkpoints may have steps whose files are gone.
_OF_A_START_IN_TEXT = re.compile(
    r', "(seconds_per_step|tokens_per_second)": TIME|, "own": \[[\d, ]*\]'
)
# In the file `checkpoint`: those that were there when it was written, before one was deleted.
_NAMED = "all_model_checkpoint_paths:"
# The checkpoint before the last: a run that is killed while it deletes this keeps it.
_BEFORE_THE_LAST = "model.ckpt-1."


def _without_starts(value: object) -> object:
    if isinstance(value, str):
        return _OF_A_START_IN_TEXT.sub("", value)
    if isinstance(value, list):
        return [_without_starts(each) for each in value if not str(each).startswith(_NAMED)]
    if isinstance(value, dict):
        return {name: _without_starts(each) for name, each in value.items()}
    return value


def _files(kind: Kind) -> dict:
    found = snapshot.files(kind.out, {})
    found = {n: _without_starts(v) for n, v in found.items() if not n.startswith(_OF_A_START)}
    left = [path.name for path in Path(os.environ["TMPDIR"]).iterdir()]
    return found | {f"TMPDIR/{name}": "left" for name in left if name.startswith("t0_")}


def _start(kind: Kind, log: Path, begin: Callable[[], None] | None = None) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if begin:
            begin()
        kind.run()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the finding
        import traceback

        traceback.print_exc()
    finally:
        # What Python does when it exits, without taking apart TensorFlow's modules.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


def _ended(child: int, seconds: float = _PATIENCE_SECONDS) -> int:
    """Waits for a process; returns its status as `os.waitstatus_to_exitcode` gives it."""
    late = threading.Timer(seconds, os.killpg, (child, signal.SIGKILL))
    late.start()
    try:
        _, status = os.waitpid(child, 0)
    finally:
        late.cancel()
    return os.waitstatus_to_exitcode(status)


def _watched_run(kind: Kind, log: Path, kill_at: int | None, group: bool) -> tuple[int, list[str]]:
    """Runs with the calls held; kills at one. Returns the exit status and the calls."""
    watched = calls.Watched(kind.out)
    child = _start(kind, log, watched.begin)

    def kill(process: int) -> None:
        if group:
            os.killpg(child, signal.SIGKILL)
        else:
            os.kill(process, signal.SIGKILL)

    # Answered until the last process of the tree is gone, also one that outlives its parent.
    answers = threading.Thread(target=watched.listen, args=(kill_at, kill), daemon=True)
    answers.start()
    status = _ended(child)
    answers.join(_PATIENCE_SECONDS)
    return status, watched.calls


def _kill_at_call(kind: Kind, log: Path, whole: Whole, number: int, group: bool) -> str:
    _, made = _watched_run(kind, log, number, group)
    at = made[number - 1] if len(made) >= number else f"none: it made {len(made)}"
    return f"{'group' if group else 'process'} at call {number} of {len(whole.calls)}: {at}"


def _kill_at_moment(kind: Kind, log: Path, whole: Whole, how: str, rng: random.Random) -> str:
    child, moment = _start(kind, log), rng.uniform(0, whole.seconds)
    time.sleep(moment)
    victim = child
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if how == "worker":
            below = psutil.Process(child).children(recursive=True)
            victim = rng.choice(sorted(p.pid for p in below)) if below else child
        (os.killpg if how == "group" else os.kill)(victim, signal.SIGKILL)
    status = _ended(child)
    if how == "worker" and victim != child and status not in (0, 2, -signal.SIGKILL):
        raise AssertionError(f"status {status} after a worker was killed")
    return f"{how} after {moment:.2f} of {whole.seconds:.2f} s"


def _kill(kind: Kind, log: Path, whole: Whole, rng: random.Random) -> tuple[str, str]:
    """Starts and kills a run; returns the way of killing, and what was done."""
    ways = ["process", "group", *(["call", "call"] if whole.calls else [])]
    how = rng.choice([*ways, "worker"] if kind.program == "seqio_cache_tasks" else ways)
    if how == "call":
        number = rng.randint(1, len(whole.calls))
        return how, _kill_at_call(kind, log, whole, number, rng.random() < 0.5)
    return how, _kill_at_moment(kind, log, whole, how, rng)


def _whole(kind: Kind, log: Path) -> Whole:
    kind.begin()
    began = time.monotonic()
    if calls.available():
        status, made = _watched_run(kind, log, None, group=False)
    else:
        status, made = _ended(_start(kind, log)), []
    assert status == 0, log.read_text()
    return Whole(_files(kind), made, time.monotonic() - began)


def _difference(wanted: dict, found: dict) -> list[str]:
    names = sorted(wanted.keys() | found.keys())
    return [
        f"{name}: was {wanted.get(name, 'absent')!s:.300}, is {found.get(name, 'absent')!s:.300}"
        for name in names
        if wanted.get(name) != found.get(name)
        and not (name not in wanted and name.startswith(_BEFORE_THE_LAST))
    ]


def _tried(name: str, kind: Kind, ways: Callable[[Whole], Iterator], folder: Path) -> int:
    """Kills a kind in each of the ways; returns how many runs did not end as the whole one."""
    log = folder / f"{name}.log"
    whole, wrong, done = _whole(kind, log), 0, collections.Counter()
    print(f"{name}: {whole.seconds:.1f} s a run, {len(whole.calls)} calls", flush=True)
    for kill in ways(whole):
        kind.begin()
        log.unlink()
        try:
            how, what = kill(kind, log, whole)
            done[how] += 1
            status = _ended(_start(kind, log))
            faults = _difference(whole.files, _files(kind))
            faults += [f"status {status}"] if status else []
        except AssertionError as error:
            what, faults = "?", [str(error)]
        faults += ["a traceback is in its log"] if "Traceback" in log.read_text() else []
        if faults:
            wrong += 1
            kept = log.rename(folder / f"{name}.wrong.{wrong}.log")
            log.touch()
            print(f"{name}: WRONG after {what}: {faults[:4]}; its log: {kept}", flush=True)
    counts = ", ".join(f"{count} {how}" for how, count in sorted(done.items()))
    print(f"{name}: {sum(done.values())} kills ({counts}), {wrong} wrong", flush=True)
    return wrong


def _random_ways(name: str, kills: int, seed: int) -> Callable[[Whole], Iterator]:
    def ways(_: Whole) -> Iterator:
        for number in range(kills):
            rng = random.Random(f"{name} {seed} {number}")
            yield lambda kind, log, whole, rng=rng: _kill(kind, log, whole, rng)

    return ways


def _every_call(whole: Whole) -> Iterator:
    for number in range(1, len(whole.calls) + 1):
        group = number % 2 == 0
        yield lambda kind, log, whole, n=number, group=group: (
            "call",
            _kill_at_call(kind, log, whole, n, group),
        )


def _import_all() -> None:
    for name in ("t0.run.command", "t0.run.modes", "t0.run.task_evaluation", "t0.training.mesh_session",
                 "t0.seqio_tasks", "t0.inference.jobs", "t0.caching", "t0.cli.convert",
                 "t0.checkpoints", "t0.cli.cache_tasks"):  # fmt: skip
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main(argv: list[str]) -> int:
    """Kills; returns how many runs did not end as the whole one."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=15, help="in all, but for --every_call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--every_call", action="store_true", help="one kill at each call")
    args = parser.parse_args(argv)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    folder = Path(tempfile.mkdtemp(prefix="t0_kills_"))

    def run(kind: Kind) -> None:
        assert _ended(_start(kind, folder / "log")) == 0, (folder / "log").read_text()

    world, names, wrong = World(folder, run), args.kinds.split(","), 0
    _import_all()
    for at, name in enumerate(names):
        share = len(range(at, args.kills, len(names)))
        ways = _every_call if args.every_call else _random_ways(name, share, args.seed)
        wrong += _tried(name, KINDS[name](world), ways, folder)
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 125))
