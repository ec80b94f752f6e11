"""Compares the time to the end of the first training step with T5's own command.

    .venv/bin/python benchmarks/starting.py --data_dir=DIR --vocab=spiece.model --rounds=3

Each command runs in a fresh process with the same gin files: t5.1.1.mini from random weights, 16 x
(256 + 32) tokens of one RTE prompt, from a cache that was made in advance. The time includes the
checkpoint of step 0. The peer is `t5.models.mesh_transformer_main` with this project's patches for
current TensorFlow. The two take turns; a first round, which warms the file cache, does not count.
Prints a Markdown table: median seconds of the processor and by the clock, from the start of the
process to the end of the step.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AIM = 12.0
TASK = "super_glue_rte_GPT_3_style"
MODEL = "models/t5.1.1.mini.gin"
BINDINGS = (
    f"MIXTURE_NAME = '{TASK}'",
    "run.train_steps = 1",
    "run.batch_size = ('sequences_per_batch', 16)",
    "run.sequence_length = {'inputs': 256, 'targets': 32}",
    "mesh_train_dataset_fn.use_cached = True",
)
# The flags that T5's own command needs on a machine without a TPU.
STOCK_BINDINGS = (
    "run.mesh_shape = ''",
    "run.mesh_devices = ['cpu:0']",
    "tpu_mesh_shape.tpu_topology = '1x1'",
    "tpu_mesh_shape.model_parallelism = 1",
)


def report():
    """Prints the seconds since the start of this process, and ends it."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = sum(usage.ru_utime + usage.ru_stime for usage in (own, children))
    began = float(os.environ["STARTING_BEGAN"])
    print(json.dumps({"processor": processor, "seconds": time.time() - began}), flush=True)
    os._exit(0)


def ours():
    """Trains with this project's command until the first step has ended."""
    from t0.cli import mesh_transformer
    from t0.training import mesh_session

    one_step = mesh_session.one_step

    def step(*args):
        one_step(*args)
        report()

    mesh_session.one_step = step
    mesh_transformer.console_entry_point()


def stock():
    """Trains with T5's own command until the first step has ended."""
    from t0 import compat

    compat.apply()
    import tensorflow.compat.v1 as tf
    from t5.models import mesh_transformer_main
    from tensorflow_estimator.python.estimator import estimator

    import t0.seqio_tasks  # noqa: F401

    class Ended(tf.estimator.SessionRunHook):
        def after_run(self, *_):
            report()

    train = estimator.Estimator.train

    def watched(self, input_fn, hooks=None, **settings):
        return train(self, input_fn, hooks=[*(hooks or ()), Ended()], **settings)

    estimator.Estimator.train = watched
    mesh_transformer_main.console_entry_point()


def measure(role, cache, args):
    """Runs one process to the end of its first step; returns its report."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--model_dir={folder}/model", "--module_import=t0.seqio_tasks"]
        words += [f"--additional_task_cache_dirs={cache}", "--gin_location_prefix=gin/"]
        words += ["--gin_file=dataset.gin", f"--gin_file={MODEL}"]
        bindings = BINDINGS + (STOCK_BINDINGS if role == "stock" else ())
        words += [f"--gin_param={binding}" for binding in bindings]
        environment = {
            **os.environ,
            "T0_VOCAB": args.vocab,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "STARTING_ROLE": role,
            "STARTING_BEGAN": str(time.time()),
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"processor"')]
    if done.returncode or not lines:
        raise SystemExit(f"{role} failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def main():
    """Runs the measurements, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="has super_glue/rte")
    parser.add_argument("--vocab", required=True, help="T5's SentencePiece model")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.vocab = str(Path(args.vocab).resolve())
    measurements = {"stock": [], "ours": []}
    with tempfile.TemporaryDirectory() as cache:
        words = ["-m", "t0.cli.cache_tasks", f"--tasks={TASK}", "--module_import=t0.seqio_tasks"]
        words += ["--splits=train", f"--data_dir={args.data_dir}", f"--vocab={args.vocab}"]
        words += [f"--output_cache_dir={cache}"]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for turn in range(args.rounds + 1):
            for role, runs in measurements.items():
                measurement = measure(role, cache, args)
                runs.extend([measurement] if turn else [])
    print("| program | processor s | s |")
    print("|---|---|---|")
    for role, name in (("stock", "T5's own command"), ("ours", "t5_mesh_transformer")):
        values = [
            statistics.median(run[kind] for run in measurements[role])
            for kind in ("processor", "seconds")
        ]
        print(f"| {name} | {values[0]:.2f} | {values[1]:.2f} |")
    print(f"\nto the end of the first step; aim: {AIM:.0f} seconds of the processor")


if __name__ == "__main__":
    role = os.environ.get("STARTING_ROLE")
    if role:
        sys.path[0] = str(ROOT)
        {"ours": ours, "stock": stock}[role]()
    else:
        main()
