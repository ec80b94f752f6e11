"""Runs of both engines over a small cached mixture; TensorFlow cannot be imported by ours."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.end_to_end import tiny_world  # noqa: F401 (for the fixtures)
from tests.helpers.command_server import CommandServer

ROOT = Path(__file__).resolve().parents[2]

# What our engine imports in any case.
IMPORTED = (
    "t0.cli.torch_run",
    "t0.torch.torch_session",
    "t0.torch.evaluation",
    "t0.torch.processes",
)
IMPORTED_WITH_TRANSFORMERS = (
    "t0.run.model_api",
    "t0.run.transformers_evaluation",
    "t0.run.task_evaluation",
    "t0.seqio_tasks",
    "t0.torch.transformers_model",
    "t0.reports.report",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bart.modeling_bart",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.longt5.modeling_longt5",
    "transformers.models.mbart.modeling_mbart",
)
MODEL = [
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.tiny.gin",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    "--gin_param=MIXTURE_NAME = 'weather_train'",
    "--gin_param=mesh_train_dataset_fn.use_cached = True",
    "--gin_param=run.batch_size = 4",
    "--gin_param=run.sequence_length = {'inputs': 64, 'targets': 16}",
    "--gin_param=get_variable_dtype.master_dtype = 'float32'",
    "--gin_param=num_layers = 2",
    # Both dimensions of most matrices are those that Adafactor factors.
    "--gin_param=d_model = 128",
    "--gin_param=d_ff = 256",
    "--gin_param=dropout_rate = 0.0",
    "--gin_param=train_loop.log_every_steps = 1",
    "--gin_param=run.total_run_steps = 30",
    "--activation_dtype=float32",
]


class World:
    """The small world's folders, and the commands of both engines.

    Most commands are forked from a process that has imported what they need.
    """

    def __init__(self, folder):
        self.folder = folder
        self._specified, self._numbers = {}, itertools.count()
        self.environment = {
            **os.environ,
            "T0_DATA_DIR": f"{folder}/data",
            "T0_VOCAB": f"{folder}/vocab.model",
            "PYTHONPATH": str(ROOT),
            # More threads than cores wait for each other.
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore,error:FSDP2-wrapped module",
        }
        self._commands = CommandServer(self.environment)
        self._engine = CommandServer(self.environment, IMPORTED)
        self._transformers = None

    def close(self):
        for server in (self._commands, self._engine, self._transformers):
            if server is not None:
                server.close()

    def python(self, *words, **given):
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**self.environment, **given},
            capture_output=True,
            text=True,
        )

    def flags(self, model_dir, steps, *flags, model=MODEL):
        """The flags of a run to a step."""
        return [
            "--module_import=t0.seqio_tasks",
            f"--additional_task_cache_dirs={self.folder}/cache",
            f"--model_dir={model_dir}",
            f"--gin_param=run.train_steps = {steps}",
            *model,
            *flags,
        ]

    def mesh(self, model_dir, steps, *flags, model=MODEL):
        """Runs t5_mesh_transformer to a step."""
        return self.command(*self.flags(model_dir, steps, *flags, model=model))

    def command(self, *words, program="t5_mesh_transformer", **given):
        """Runs an installed command, or a function "module:function", in an environment."""
        return self._forked(self._commands, words, program=program, environment=given)

    def with_transformers(self, *words, **given):
        """Runs `t0` in a fork of a process that has imported transformers."""
        if self._transformers is None:
            self._transformers = CommandServer(self.environment, IMPORTED_WITH_TRANSFORMERS)
        return self._forked(self._transformers, words, program="t0", **given)

    def _forked(self, server, words, **given):
        done = server.run(*map(str, words), cwd=self.folder, **given)
        return subprocess.CompletedProcess(words, done.status, done.out, done.err)

    def specified(self, model_dir, steps, *flags, model=MODEL, **changes):
        """The path of the specification of a run.

        A change, such as `schedule__parameters__learning_rate=0.002`, is one of its fields.
        """
        path = self.folder / f"{model_dir.name}-{steps}-{next(self._numbers)}.json"
        key = (flags, str(model_dir) if model is not MODEL else "")
        if key not in self._specified:
            done = self.mesh(model_dir, steps, *flags, f"--save_spec={path}", model=model)
            assert done.returncode == 0, done.stderr
            self._specified[key] = path.read_text()
        # Of a training run nothing else depends on these two; TensorFlow starts in 10 s.
        changes |= {"model_dir": str(model_dir), "train_steps": steps}
        spec = json.loads(self._specified[key])
        for name, value in changes.items():
            *outer, last = name.split("__")
            place = spec
            for part in outer:
                place = place[part]
            place[last] = value
        path.write_text(json.dumps(spec))
        return path

    def torch(self, *words, processes=1, **given):
        """Runs `python -m t0.torch`, from which TensorFlow cannot be imported."""
        if processes == 1:
            program, words = "tests.torch.torch_alone:main", [*words, "--device=cpu"]
            return self._forked(self._engine, words, program=program, environment=given)
        launch = ["--standalone", f"--nproc_per_node={processes}", "-m", "t0.torch"]
        return self.python("-m", "torch.distributed.run", *launch, *words, "--device=cpu", **given)


def losses(model_dir):
    """Step -> T5's loss, as metrics.jsonl has it."""
    records = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def message(done):
    """The one line of a command that ended as a user's mistake should."""
    assert done.returncode, done.stdout
    # torchrun adds a report of its own, with its own traceback, where a process has failed.
    ours = done.stderr.partition("torch/distributed/elastic/")[0]
    assert "Traceback" not in ours, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("t0.torch: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]
