"""Compares the planner's memory estimate with measured memory, and measures the cost of planning.

    python benchmarks/planning.py            # both tables, about two minutes on two cores
    python benchmarks/planning.py --memory --json

Memory: XLA compiles a step of each small model for the CPU. XLA's own report has the bytes that it
allocates in addition to the arguments (the variables). The estimate reads the same program with the
rules of a plan for a TPU, and two additions for the CPU: operands of batched products are copied
into the order that the products need, and each updated variable gets new memory (on a TPU it is
updated in place).

Planning: the two commands of T0's recipe are planned with few blocks, with all blocks and by
formula. The table has the seconds of the processor (other load on the machine does not count) and
of the clock, and the peak memory.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SHAPES = {
    # name: gin parameters, sequences, mode
    "train, whole batch": ("d_model=192", "d_ff=384", 16, None, "train", 256, 64),
    "train, microbatches": ("d_model=192", "d_ff=384", 16, 1024, "train", 256, 64),
    "train, wide": ("d_model=512", "d_ff=1024", 4, None, "train", 128, 32),
    "score": ("d_model=192", "d_ff=384", 16, None, "score_eval", 256, 64),
}
RECIPES = {
    "train v3-512": (
        *("models/t5.1.1.lm100k.xxl.gin", "mesh/v3-512.gin"),
        "learning_rate_schedules/constant_0_001.gin",
    ),
    "score_eval v3-128": ("models/t5.1.1.lm100k.xxl.gin", "score_eval.gin", "mesh/v3-128.gin"),
}
LENGTHS = "run.sequence_length = {'inputs': 1024, 'targets': 256}"


def main():
    """Prints the tables, or one measurement for `child`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memory", action="store_true", help="only the memory table")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shape:
        print(json.dumps(measure(args.shape)))
        return
    # The shapes are measured in parallel, because XLA compiles each one with a single thread. Only
    # bytes are measured, not times.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(child, SHAPES))
    if args.json:
        print(json.dumps(rows))
        return
    print("| memory of a step beside its variables | estimate MiB | XLA's MiB | ratio |")
    print("|---|---|---|---|")
    for row in rows:
        estimate, measured = row["estimate_bytes"], row["measured_bytes"]
        sizes = f"{estimate / 2**20:.1f} | {measured / 2**20:.1f}"
        print(f"| {row['name']} | {sizes} | {estimate / measured:.2f} |")
    if not args.memory:
        print("\n| plan | processor s | clock s | GiB |\n|---|---|---|---|", flush=True)
        for name in RECIPES:
            for switch in ("", "--exact"):
                print_planning(name, switch)


def child(name):
    """Measures one shape in its own process, in which XLA writes a report."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=cluster.*"
        done = subprocess.run(
            [sys.executable, __file__, "--shape", name],
            env={**os.environ, "XLA_FLAGS": flags, "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        estimate = json.loads(done.stdout.splitlines()[-1])
        report = max(Path(folder).glob("*buffer-assignment.txt")).read_text()
    sizes = re.findall(r"^allocation \d+: size (\d+), ([\w-]+)", report, re.M)
    measured = sum(int(size) for size, kind in sizes if kind != "parameter")
    return {"name": name, "estimate_bytes": estimate, "measured_bytes": measured}


def measure(name):
    """Estimates a shape's memory, and runs its step once so that XLA compiles and reports it."""
    from t0 import compat

    compat.apply()
    import tensorflow.compat.v1 as tf

    from t0.mesh.liveness import peak_memory
    from t0.mesh.lowering import read_program

    tf.disable_v2_behavior()
    run = configure(name)
    with tf.Graph().as_default() as graph, tf.variable_scope("", use_resource=True):
        tf.train.create_global_step()
        _, fetched = build(run)
        program = read_program(graph, fetched)
    run_compiled(run)
    updated = sum(
        program.values[step.inputs[1]].bytes
        for step in program.steps
        if step.kind == "AssignVariableOp"
    )
    return peak_memory(with_transposes(program)).bytes + updated


def with_transposes(program):
    """Adds a step before each batched product that copies an operand into the order it wants."""
    import dataclasses

    steps, values, copies = [], list(program.values), {}
    for step in program.steps:
        inputs = list(step.inputs)
        orders = wanted_orders(step.detail) if step.kind == "Einsum" else ()
        for position, order in enumerate(orders):
            operand = step.inputs[position]
            if order is None:
                continue
            if (operand, order) not in copies:
                copies[operand, order] = len(values)
                values.append(program.values[operand])
                # The copy is treated like a sum: it is fused with its input, but its result is
                # stored.
                copy = dataclasses.replace(
                    step, kind="Sum", inputs=(operand,), outputs=(len(values) - 1,), detail=None
                )
                steps.append(copy)
            inputs[position] = copies[operand, order]
        steps.append(dataclasses.replace(step, inputs=tuple(inputs)))
    return dataclasses.replace(program, steps=tuple(steps), values=tuple(values))


def wanted_orders(equation):
    """Returns, for each operand of an einsum, the order its dimensions must be copied into.

    XLA's products on the CPU need their batch dimensions first. An operand's order is None if they
    are first already, or if there are none.

    >>> wanted_orders("blhd,bmhd->bhlm")
    [(0, 2, 1, 3), (0, 2, 1, 3)]
    """
    operands, _, output = equation.partition("->")
    terms = operands.split(",")
    batch = "".join(c for c in output if all(c in term for term in terms))
    orders = [batch + "".join(c for c in term if c not in batch) for term in terms]
    return [
        None if len(terms) == 1 or order == term else tuple(map(term.index, order))
        for order, term in zip(orders, terms, strict=True)
    ]


def configure(name):
    """Configures gin for a shape and returns the run."""
    import dataclasses

    from absl import flags

    from t0.config import parse
    from t0.mesh.pod_run import read_pod_run

    flags.FLAGS(["benchmark"])
    d_model, d_ff, sequences, tokens, mode, inputs, targets = SHAPES[name]
    files = ["dataset.gin", "models/t5.1.1.mini.gin", "learning_rate_schedules/constant_0_001.gin"]
    parse.parse(
        files + (["score_eval.gin"] if mode == "score_eval" else []),
        [
            *(d_model, d_ff, "utils.tpu_mesh_shape.tpu_topology = 'v3-8'"),
            "run.mesh_shape = 'batch:8'",
            f"run.sequence_length = {{'inputs': {inputs}, 'targets': {targets}}}",
            f"run.batch_size = ('sequences_per_batch', {8 * sequences})",
            f"serialize_num_microbatches.tokens_per_microbatch_per_replica = {tokens}",
            "get_variable_dtype.activation_dtype = 'float32'",
            "get_variable_dtype.master_dtype = 'float32'",
            "run.train_steps = 100",
        ],
    )
    # Only one of the eight replicas is computed, on a mesh of one device.
    import mesh_tensorflow as mtf

    return dataclasses.replace(
        read_pod_run(vocabulary_size=2000), batch_sequences=sequences, mesh_shape=mtf.Shape([])
    )


def build(run):
    """Builds a step with Mesh TensorFlow on one device; returns its features and its fetches."""
    import tensorflow.compat.v1 as tf
    from mesh_tensorflow.transformer import utils as mesh_utils

    from t0.mesh import lowering

    model_fn = mesh_utils.tpu_estimator_model_fn(
        model_type="bitransformer",
        transformer_model=lowering.build_model(run),
        vocabulary=None,
        model_dir="unused",
        use_tpu=False,
        mesh_shape=run.mesh_shape,
        layout_rules=run.layout_rules,
        batch_size=run.batch_sequences,
        sequence_length=dict(run.sequence_length),
        autostack=True,
        keep_checkpoint_max=None,
        save_checkpoints_steps=1000,
        learning_rate_schedule=run.learning_rate_schedule,
        optimizer=run.optimizer,
        score_in_predict_mode=run.mode == "score_eval",
    )
    with tf.Graph().as_default():
        placeholders = lowering.placeholders(run)
    features = {name: tf.ones(p.shape, tf.int32) for name, p in placeholders.items()}
    keys = tf.estimator.ModeKeys
    train = run.mode == "train"
    spec = model_fn(features, None, keys.TRAIN if train else keys.PREDICT, params={})
    return features, [spec.loss, spec.train_op] if train else [spec.predictions["scores"]]


def run_compiled(run):
    """Runs a step once, compiled by XLA."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.compiler.xla import xla

    with tf.Graph().as_default(), tf.variable_scope("", use_resource=True):
        tf.train.create_global_step()
        step = xla.compile(lambda: build(run)[1])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run([v.initializer for v in tf.get_collection("TPU_VAR")])
            session.run(tf.local_variables_initializer())
            session.run(step)


def print_planning(name, switch):
    """Plans a recipe in its own process and prints the time and memory."""
    files = [f"--gin_file={file}" for file in ("dataset.gin", *RECIPES[name])]
    scoring = name.startswith("score")
    params = [LENGTHS, f"tpu_mesh_shape.model_parallelism = {4 if scoring else 8}"]
    params += [
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
        "run.train_steps = 1112200",
    ]
    params += ["run.batch_size = ('tokens_per_batch', 262144)"] if scoring else []
    command = [sys.executable, "-m", "t0.cli.main", "plan", *files]
    command += [f"--gin_param={param}" for param in params] + ([switch] if switch else [])
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} failed")
    seconds = usage.ru_utime + usage.ru_stime
    label = f"{name}{f', {switch}' if switch else ''}"
    clock = time.monotonic() - started
    memory = f"{usage.ru_maxrss / 2**20:.2f}"
    print(f"| {label} | {seconds:.1f} | {clock:.1f} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
