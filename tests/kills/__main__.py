"""Kills commands at random moments, goes on, and compares bytes: `python -m tests.kills`.

python -m tests.kills --kills=300 --seed=4
python -m tests.kills --kinds=convert

Each kind is run once without a kill, for its time and its files. Then it is started, killed with
SIGKILL, and started again until it ends: the files must be those of the whole run, and nothing may
be left beside them. What is killed is the process, its group, or the process itself right before or
after one of its renames and syncs. Processes are forked from one that has imported what they need.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROWS = 4000
_TEMPLATES = """dataset: mine
templates:
  a: !Template
    name: which
    jinja: '{{text}} Which? ||| {{answer_choices[label]}}'
    answer_choices: no ||| yes
    metadata: !TemplateMetadata {original_task: true, metrics: [Accuracy]}
"""


def cache(folder: Path) -> Callable[[], None]:
    """`seqio_cache_tasks` over a dataset of one's own."""
    from t0 import testing
    from t0.cli import cache_tasks

    data = folder / "data" / "mine"
    data.mkdir(parents=True)
    (data / "templates.yaml").write_text(_TEMPLATES)
    rows = ({"text": f"row {n} " + "word " * (n % 40), "label": n % 2} for n in range(ROWS))
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (
        json.dumps(row) for row in [{"text": "row word no yes Which", "n": n} for n in range(99)]
    )
    vocabulary = testing.train_vocabulary(folder / "words.model", text)
    words = ["--tasks=mine_.*", "--module_import=t0.seqio_tasks", f"--vocab={vocabulary}"]
    words += [f"--data_dir={folder / 'data'}", f"--output_cache_dir={folder / 'out'}"]
    words += ["--num_workers=2"]

    def run() -> None:
        sys.argv = ["seqio_cache_tasks", *words]
        cache_tasks.console_entry_point()

    return run


def convert(folder: Path) -> Callable[[], None]:
    """`t0 convert` from Mesh TensorFlow's format to Hugging Face's."""
    from tiny_checkpoints import model_shape, weights, write_mtf

    from t0.checkpoints import convert

    write_mtf(folder / "mtf", weights(model_shape(vocabulary=8192, d_model=128, inner=128)))

    def run() -> None:
        (folder / "out").mkdir(exist_ok=True)
        if not (folder / "out" / "hf").exists():
            convert(folder / "mtf", folder / "out" / "hf", to="hf", progress=False)

    return run


KINDS = {"cache": cache, "convert": convert}


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _dies_at(number: int, after: bool) -> None:
    """Makes this process kill itself at its renames and syncs, counted together."""
    left = number

    def dying(call: Callable) -> Callable:
        def counted(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = call(*args, **kwargs)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted

    for name in ("rename", "replace", "fsync"):
        setattr(os, name, dying(getattr(os, name)))


def _start(run: Callable[[], None], log: Path, before: Callable[[], None] | None = None) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if before:
            before()
        run()
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    finally:
        os._exit(status)


def _ended(child: int) -> bool:
    """Waits for a process; returns whether it ended by itself and well."""
    _, status = os.waitpid(child, 0)
    return status == 0


def _kill(run: Callable[[], None], log: Path, seconds: float, rng: random.Random) -> str:
    """Starts and kills a run; returns what was done."""
    how = rng.choice(["process", "group", "rename or sync"])
    if how == "rename or sync":
        number, after = rng.randint(1, 12), rng.random() < 0.5
        child = _start(run, log, lambda: _dies_at(number, after))
        _ended(child)
        return f"{'after' if after else 'before'} its rename or sync {number}"
    child, moment = _start(run, log), rng.uniform(0, seconds)
    time.sleep(moment)
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if how == "group" else os.kill)(child, signal.SIGKILL)
    _ended(child)
    return f"{how} after {moment:.2f} of {seconds:.2f} s"


def _tried(kind: str, kills: int, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="t0_kills_"))
    run, log, out = KINDS[kind](folder), folder / "log", folder / "out"
    began = time.monotonic()
    assert _ended(_start(run, log)), log.read_text()
    seconds, whole, wrong = time.monotonic() - began, _files(out), 0
    for number in range(kills):
        shutil.rmtree(out)
        how = _kill(run, log, seconds, random.Random(f"{kind} {seed} {number}"))
        good = _ended(_start(run, log))
        if not good or _files(out) != whole:
            wrong += 1
            differing = sorted(set(_files(out).items()) ^ set(whole.items()))
            print(f"{kind}: WRONG after a kill of {how}: {differing[:6]}; its log: {log}")
    print(f"{kind}: {kills} kills, {wrong} wrong; {len(whole)} files, {seconds:.2f} s a run")
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def main(argv: list[str]) -> int:
    """Kills; returns how many runs did not end as the whole one."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=15, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args(argv)
    sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
    import t0.caching  # noqa: F401 - before processes are forked

    kinds = args.kinds.split(",")
    shares = [len(range(n, args.kills, len(kinds))) for n in range(len(kinds))]
    wrong = [_tried(*each, args.seed) for each in zip(kinds, shares, strict=True)]
    return sum(wrong)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 125))
