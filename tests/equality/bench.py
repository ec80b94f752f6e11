"""Runs the commands of a section and keeps what each did.

    with Bench(base, server) as bench:
        bench.run("tasks", "t0", "tasks", "weather.*")
        bench.kept["tasks"]          # {"status": 0, "out": [...], "err": [...], "operative": [...],
                                     #  "files": {...}}

In the words of a command line $BASE is the foundation, $OUT the command's own folder, $ALL the
folder of all of the section's, by their names.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.equality import snapshot
from tests.helpers.command_server import CommandServer, entry_points

ROOT = Path(__file__).resolve().parents[2]
_TEXTS_OF_A_COMMAND = ("out", "err", "operative")


class Bench:
    """A folder for one recording or comparison: the foundation, and a folder for each command."""

    def __init__(self, base: Path | None = None):
        """Prepares.

        Args:
          base: a foundation of before, which is copied; None where it is still to be made.
        """
        # Some files hold their own path, so each bench's has the same length.
        self.folder = Path(tempfile.mkdtemp(prefix="t0_equality_"))
        self.base = self.folder / "base"
        if base:
            shutil.copytree(base, self.base)
        else:
            self.base.mkdir()
        self.kept: dict[str, dict] = {}
        self.seconds: dict[str, float] = {}
        self._environment = _environment(self.base)
        self._server: CommandServer | None = None

    def __enter__(self) -> "Bench":
        """Returns itself; the folder goes at the end."""
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the server and removes the folder."""
        if self._server:
            self._server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def out(self, name: str) -> Path:
        """Returns the folder of a command."""
        return self.folder / "out" / name

    def run(
        self,
        name: str,
        program: str,
        *argv: str,
        model: bool = False,
        at: str | None = None,
        anew: bool = False,
    ) -> None:
        """Runs a command and keeps what it printed and wrote.

        Args:
          name: of what is kept.
          program: an installed command, or a function, such as "package.module:main".
          argv: its words.
          model: starts with a copy of the foundation's model in $OUT/model.
          at: the name of an earlier command whose folder this one works in.
          anew: in a process of its own, not forked from one that has TensorFlow.
        """
        began = time.monotonic()
        out = self.out(at or name)
        out.mkdir(parents=True, exist_ok=True)
        if model and not at:
            shutil.copytree(self.base / "model", out / "model")
        before = snapshot.digests(out)
        words = [self._filled(word).replace("$OUT", str(out)) for word in argv]
        runs = self._alone if anew else self._forked
        status, *texts = runs(program, words, out)
        places = self.places()
        self.kept[name] = {
            "command": " ".join([program, *argv]).replace(str(ROOT), "$ROOT"),
            "status": status,
            **{
                k: snapshot.lines(v, places)
                for k, v in zip(_TEXTS_OF_A_COMMAND, texts, strict=True)
            },
            "files": snapshot.files(out, places, but=before),
        }
        self.seconds[name] = time.monotonic() - began

    def must(self, program: str, *argv: str) -> None:
        """Runs a command of the foundation, which has to succeed."""
        words = [self._filled(word) for word in argv]
        runs = self._alone if program == "seqio_cache_tasks" else self._forked
        status, out, err, _ = runs(program, words, self.base)
        if status:
            raise SystemExit(f"{program} {' '.join(words)}: status {status}\n{out}\n{err}")

    def kill_when(self, pattern: str, program: str, *argv: str) -> None:
        """Starts a command, and kills its processes when it has written a file.

        Args:
          pattern: of the file, in the foundation.
          program: an installed command.
          argv: its words.
        """
        process = self._start(program, [self._filled(word) for word in argv], self.base)
        while process.poll() is None and not any(self.base.glob(pattern)):
            time.sleep(0.002)
        if process.poll() is not None:
            raise SystemExit(f"{program} {' '.join(argv)} ended before it wrote {pattern}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _filled(self, word: str) -> str:
        return word.replace("$BASE", str(self.base)).replace("$ALL", str(self.folder / "out"))

    def _forked(self, program: str, words: list[str], folder: Path) -> tuple[int, str, str, str]:
        if self._server is None:
            self._server = CommandServer(self._environment)
        done = self._server.run(*words, program=program, cwd=folder)
        return done.status, done.out, done.err, done.operative

    def _alone(self, program: str, words: list[str], folder: Path) -> tuple[int, str, str, str]:
        process = self._start(program, words, folder, subprocess.PIPE)
        out, err = process.communicate()
        return process.returncode, out, err, ""

    def _start(
        self, program: str, words: list[str], folder: Path, output: int = subprocess.DEVNULL
    ) -> subprocess.Popen:
        module, function = program.split(":") if ":" in program else entry_points()[program]
        code = f"import sys; sys.argv[0] = '{program}'; from {module} import {function} as f"
        return subprocess.Popen(
            [sys.executable, "-c", f"{code}; sys.exit(f())", *words],
            cwd=folder,
            env=self._environment,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )

    def places(self) -> dict[str, str]:
        """Returns path -> the word that replaces it in what is kept."""
        # The virtual environment may be a link, and is below the root.
        prefixes = {sys.prefix: "$VENV", str(Path(sys.prefix).resolve()): "$VENV"}
        root = {str(ROOT): "$ROOT"}
        return {str(self.folder): "$WORK", **prefixes, **root}


def _environment(base: Path) -> dict[str, str]:
    from tests.helpers.confined import confinement

    dropped = ("T0_DATA_DIR", "T0_VOCAB", "TPU_NAME", "HF_TOKEN", "COLUMNS", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers" / "confined")]),
        "T0_DATA_DIR": str(base / "data"),
        "T0_VOCAB": str(base / "vocab.model"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "NO_GCE_CHECK": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONHASHSEED": "0",
        "COLUMNS": "100",
        **confinement.PROXIES,
    }
