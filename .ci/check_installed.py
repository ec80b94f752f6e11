"""Checks an installed wheel from an empty directory: python check_installed.py CHECKOUT VENV.

Everything must come from the wheel, nothing from the checkout, and nothing may be written. Then the
commands go from a file of rows to a report, in a temporary directory.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

TASKS = 971
MIXTURES = 8
ROWS, VOCABULARY = "tickets/train.jsonl", "tickets.model"  # in examples/own_prompts/data
RUNS = (
    "t0 init tickets {rows} --text=text --label=urgent --choices=no,yes --vocab={vocabulary}",
    "seqio_cache_tasks --output_cache_dir=tickets/cache",
    "t5_mesh_transformer --gin_file=tickets/train.gin --gin.TRAIN_STEPS=2",
    "t0 eval tickets/model --limit=10",
)
COMMANDS = ("t0", "seqio_cache_tasks", "t5_mesh_transformer")


def check_commands(bin_folder: Path) -> None:
    """Every command answers --help with status 0."""
    for name in COMMANDS:
        command = [str(bin_folder / name), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        # absl's --help exits with 1 after printing the flags.
        answered = done.returncode in (0, 1) and len(done.stdout) > 100
        assert answered, f"{name} --help: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        print(f"{name} --help: {len(done.stdout.splitlines())} lines")


def check_runs(bin_folder: Path, data: Path) -> None:
    """The commands cache, train and evaluate a project that `t0 init` makes from a file."""
    with tempfile.TemporaryDirectory() as folder:
        for line in RUNS:
            name, *words = line.format(rows=data / ROWS, vocabulary=data / VOCABULARY).split()
            done = subprocess.run(
                [bin_folder / name, *words], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            print(f"{line}: ok")
        assert list(Path(folder).glob("tickets/eval/*/report/report.html"))


def check_gin(package: Path, checkout: Path) -> None:
    """The wheel holds every gin file of the checkout."""
    expected = {str(path.relative_to(checkout)) for path in checkout.glob("gin/**/*.gin")}
    packaged = {str(path.relative_to(package)) for path in package.glob("gin/**/*.gin")}
    assert expected == packaged, f"gin files differ: {expected ^ packaged}"
    assert packaged, "no gin files"
    print(f"{len(packaged)} gin files")


def check_catalogue(site: Path) -> None:
    """Importing `seqio_tasks` registers the original's tasks and mixtures."""
    from t0 import compat

    compat.apply()
    import seqio
    import t5.data  # noqa: F401 (registers tasks that are not ours)

    before = [set(r.names()) for r in (seqio.TaskRegistry, seqio.MixtureRegistry)]
    import seqio_tasks
    import t0.seqio_tasks

    for module in (t0.seqio_tasks, seqio_tasks):
        assert Path(module.__file__).is_relative_to(site), module.__file__
    after = [set(r.names()) for r in (seqio.TaskRegistry, seqio.MixtureRegistry)]
    tasks, mixtures = (len(new - old) for new, old in zip(after, before, strict=True))
    assert (tasks, mixtures) == (TASKS, MIXTURES), f"{tasks} tasks and {mixtures} mixtures"
    print(f"{tasks} tasks and {mixtures} mixtures from {t0.seqio_tasks.__file__}")


def main(checkout: Path, environment: Path) -> None:
    """Runs the checks; raises AssertionError at the first that fails."""
    import t0

    site = Path(t0.__file__).parents[1]
    assert site.is_relative_to(environment), f"t0 was imported from {site}"
    print(f"t0 {importlib.metadata.version('t0')} in {site}")
    check_gin(site / "t0", checkout)
    check_commands(environment / "bin")
    check_catalogue(site)
    check_runs(environment / "bin", checkout / "examples" / "own_prompts" / "data")
    leftovers = list(Path.cwd().iterdir())
    assert not leftovers, f"files were written into the working directory: {leftovers}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).resolve())
