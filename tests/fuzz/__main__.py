"""Fuzzes what the project reads, for a fixed time: `python -m tests.fuzz --seconds=60`.

python -m tests.fuzz --seconds=7200 --seed=3            # two hours, other examples
python -m tests.fuzz --targets=caches,t5x --seconds=600

The rule is one: the right answer or a `UserError`, within time and memory, and nothing written
outside the output folder. Each target runs in a process of its own, with a limit on memory and a
time for each example; what the process was about when it died is in its folder.
"""

import argparse
import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

EXAMPLE_SECONDS = 20
MEMORY_BYTES = 3 * 2**30
EXAMPLES = 40


def _loop(name: str, folder: Path, seconds: float, seed: int) -> int:
    """Runs a target until its time is over; returns the number of examples."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    from t0.errors import UserError
    from tests.fuzz.targets import TARGETS

    work = folder / "work"
    work.mkdir()
    run, ends, count = TARGETS[name](work), time.monotonic() + seconds, 0
    outside = sorted(folder.iterdir())

    def example(data: st.DataObject) -> None:
        nonlocal count
        if time.monotonic() > ends:
            raise KeyboardInterrupt  # the one exception that ends hypothesis at once
        count += 1
        signal.alarm(EXAMPLE_SECONDS)
        try:
            run(data)
        except UserError as error:
            assert 0 < len(str(error)) < 5000, f"a message of {len(str(error))} characters"
        finally:
            signal.alarm(0)
        assert sorted(folder.iterdir()) == outside, "something was written outside"

    while time.monotonic() < ends:
        checks = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        with contextlib.suppress(KeyboardInterrupt):
            seeded(seed)(checks(given(st.data())(example)))()
        seed += 1000
    return count


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an example took more than {EXAMPLE_SECONDS} s")


def _child(name: str, folder: Path, seconds: float, seed: int) -> None:
    os.environ |= {"T0_TEMPLATE_SECONDS": "1", "T0_TEMPLATE_CHARACTERS": "1e6"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    status = 1
    try:
        count = _loop(name, folder, seconds, seed)
        print(f"{name}: {count} examples, nothing found", flush=True)
        status = 0
    except BaseException:  # noqa: BLE001 - the finding
        print(f"{name}: FOUND, seed {seed}\n{traceback.format_exc()}", flush=True)
    finally:
        os._exit(status)


def main(argv: list[str]) -> int:
    """Fuzzes; returns the number of targets with findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default="", help="names, separated by commas; all by default")
    args = parser.parse_args(argv)
    from tests.fuzz.targets import TARGETS

    names = args.targets.split(",") if args.targets else list(TARGETS)
    found = 0
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="t0_fuzz_"))
        seconds = args.seconds / len(names)
        child = os.fork()
        if not child:
            _child(name, folder, seconds, args.seed)
        _, status = os.waitpid(child, 0)
        if status:
            found += 1
            died = os.WIFSIGNALED(status) and f"by signal {os.WTERMSIG(status)}"
            print(f"{name}: ended {died or 'with a finding'}; its files are in {folder}")
        else:
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 125))
