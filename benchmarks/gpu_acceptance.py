"""Tests the engine on a GPU: bits, memory of large models, ranking, speed, parity with the CPU.

    bin/gpu_acceptance                              # all parts, about 15 minutes on one GPU
    bin/gpu_acceptance --parts kernels memory
    bin/gpu_acceptance --device=cpu --small         # does it work? minutes on a processor

Each part is a process with a time limit, which it prints. The parts that tell the most run first.
When a part ends, its results are added to `gpu_acceptance.json` and `gpu_acceptance.md` in the
folder --output, next to our goals. The program needs PyTorch, Transformers and pytest, but no
TensorFlow, no network and no data.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpu
import numpy as np
import torch
import torch_runs
import training_torch_ours

from t0.config.model_spec import require_t5
from t0.torch import processes, sharding
from t0.torch.model import KERNELS, attend

ROOT = Path(__file__).resolve().parents[1]
# Part -> its time limit in seconds. All parts together take about fifteen minutes.
LIMITS = {
    "bits": 90,
    "gradients": 150,
    "xxl": 60,
    "ranking": 150,
    "speed": 320,
    "memory": 60,
    "parity": 120,
    "profile": 60,
    "kernels": 30,
}
Records = list[dict[str, Any]]


def parity(given: argparse.Namespace) -> Records:
    """Runs the tests that compare a device with the CPU."""
    marks = "gpu" if given.device == "cuda" else "not gpu"
    command = [sys.executable, "-m", "pytest", "--noconftest", "-o", "filterwarnings="]
    command += ["-p", "no:cacheprovider", "-q", "-m", marks, "--durations=5"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "torch" / "torch_devices_test.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
    lines = done.stdout.strip().splitlines() or ["no answer"]
    failed = [line[:200] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return [{"what": lines[-1].strip("= "), "met": done.returncode == 0, "failed": failed}]


# Name -> (sequences, heads, tokens of a sequence) of an attention whose bias has a gradient.
ATTENTION = {
    "base 512": (32, 12, 512),
    "large 512": (16, 16, 512),
    "T0-3B 1024": (2, 32, 1024),
    "large 114": (16, 16, 114),
}


def kernels(given: argparse.Namespace) -> Records:
    """Measures the times of the kernels that accept a bias with a gradient."""
    device = torch.device(given.device)
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    found: Records = []
    names = KERNELS if given.device == "cuda" else ("plain",)
    shapes = ATTENTION if not given.small else {"tiny": (2, 2, 64)}
    for shape, sizes in shapes.items():
        for kernel in names:
            try:
                found.append(
                    {"kernel": kernel, "shape": shape} | _timed(kernel, sizes, device, dtype)
                )
            except Exception as error:  # noqa: BLE001 (one kernel's fault is a result)
                found.append({"kernel": kernel, "shape": shape, "fault": str(error)[:300]})
            given.partial(found)
    return found


def _timed(
    kernel: str, sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """Returns the milliseconds of a forward and a backward pass, the TFLOP/s, and the memory."""
    rows, heads, length = sizes
    torch.manual_seed(0)
    queries, keys, values = (
        torch.randn(rows, heads, length, 64, device=device).mul(0.3).to(dtype).requires_grad_()
        for _ in range(3)
    )
    positions = torch.randn(heads, length, length, device=device).requires_grad_()
    weigh = torch.randn(rows, heads, length, 64, device=device).to(dtype)

    def bias() -> torch.Tensor:
        return positions.to(dtype) + torch.zeros(
            rows, 1, length, length, dtype=dtype, device=device
        )

    def both() -> None:
        given = bias()
        for _ in range(4):  # layers share the bias
            attend(queries, keys, values, given, kernel).backward(weigh, retain_graph=True)

    for _ in range(2):
        both()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began, times = time.perf_counter(), 5
    for _ in range(times):
        both()
    peak = 0
    if device.type == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    milliseconds = (time.perf_counter() - began) / times / 4 * 1e3
    flops = 3.5 * 4 * rows * heads * length * length * 64
    return {
        "ms of a layer": milliseconds,
        "TFLOP/s": flops / milliseconds / 1e9,
        "MiB": peak / 2**20,
    }


# (size, sequences, lengths, microbatches, attention kernel, whether activations are recomputed)
STEPS = (
    ("xl", 4, "1024+256", 2, "efficient", "auto"),
    ("large", 16, "512+114", 1, "efficient", "off"),
    ("base", 32, "512+114", 1, "efficient", "off"),
    ("large", 16, "512+114", 1, "plain", "off"),
    ("base", 32, "512+114", 1, "plain", "off"),
)


def memories(given: argparse.Namespace) -> Records:
    """Compares the peak memory of training steps with the formula of `t0.torch.memory`."""
    return _peaks(given, STEPS)


def xxl(given: argparse.Namespace) -> Records:
    """Trains T5 1.1 xxl, the size of T0, which needs a GPU with 80 GB."""
    return _peaks(given, (("xxl", 1, "1024+256", 1, "efficient", "on"),), gradients="fused")


def _peaks(given: argparse.Namespace, steps: Sequence[Any], **options: str) -> Records:
    found: Records = []
    if given.small:
        steps = (("tiny", 2, "512+114", 1, "plain", "off"),)
    for size, rows, lengths, parts, kernel, recompute in steps:
        record = {"size": size, "rows": rows, "tokens": lengths, "kernel": kernel}
        try:
            settings = {"attention": [kernel], "recompute": recompute, "microbatches": parts}
            settings |= options
            record |= _peak(given.device, size, rows, gpu.SHAPES[lengths], settings)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            record["fault"] = str(error)[:300]
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()
        found.append(record)
        given.partial(found)
    return found


def _peak(
    device: str, size: str, rows: int, lengths: Mapping[str, int], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the peak memory of a few steps, and the memory that the formula computes."""
    asked = {"size": size, "rows": rows, "lengths": lengths, "type": "bfloat16", **settings}
    with processes.join_processes(device) as joined:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        engine, batches = training_torch_ours.opened(asked, joined)
        training_torch_ours.measured(engine, batches, 2)
        seconds = training_torch_ours.measured(engine, batches, 1)["seconds"]
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        needed = engine.needed
        return {
            "ran": engine.kernel,
            "gib": peak / 2**30,
            "formula": needed.total / 2**30,
            "ratio": peak / needed.total,
            "seconds": seconds,
            "recomputed": engine.switches.recompute,
            "parts": {k: round(v / 2**30, 2) for k, v in vars(needed).items()},
        }


# (attention kernel, whether the blocks are compiled, whether steps are replayed as CUDA graphs,
# whether PyTorch may only use deterministic kernels)
BIT_RUNS = (
    ("efficient", False, False, False),
    ("efficient", True, True, False),
    ("efficient", False, False, True),
    ("plain", False, False, False),
)
BIT_STEPS = 5


def bits(given: argparse.Namespace) -> Records:
    """Takes the same steps twice; counts the weights that differ afterwards."""
    # Without this, cuBLAS refuses to compute with deterministic kernels only.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    size, rows = ("tiny", 2) if given.small else ("base", 32)
    found: Records = []
    for kernel, compiled, replays, deterministic in BIT_RUNS:
        settings = {"attention": [kernel], "compiled": compiled and not given.small}
        record = {"size": size, "rows": rows, "tokens": "512+114", "kernel": kernel}
        record |= {"compiled": settings["compiled"], "deterministic": deterministic}
        torch.use_deterministic_algorithms(deterministic)
        try:
            runs = [
                _after_steps(given.device, size, rows, settings | {"replays": replays})
                for _ in range(2)
            ]
        except RuntimeError as error:
            record["fault"] = str(error)[:300]
        else:
            record |= {"seconds": runs[0].seconds} | _compare(*runs)
        torch.use_deterministic_algorithms(False)
        found.append(record)
        given.partial(found)
    return found


class _Run(NamedTuple):
    """A run of `BIT_STEPS` steps: its weights and losses, seconds of the last step, and memory."""

    weights: dict[str, torch.Tensor]
    losses: list[dict[str, float]]
    seconds: float
    peak: int
    formula: int


def _compare(first: _Run, second: _Run) -> dict[str, Any]:
    """Returns the fields of a record that say how two runs differ."""
    pairs = [(value, second.weights[name]) for name, value in first.weights.items()]
    differing = sum(not torch.equal(*pair) for pair in pairs)
    return {
        "equal losses": first.losses == second.losses,
        "differing": f"{differing} of {len(pairs)}",
        "largest": max(float((one - other).abs().max()) for one, other in pairs),
    }


# (microbatches, where gradients stay); the runs after "keep" are compared with it.
GRADIENT_RUNS = ((1, "keep"), (1, "fused"), (2, "keep"), (2, "offload"))


def gradients(given: argparse.Namespace) -> Records:
    """Trains T0-3B with each value of --gradients: bits, seconds, and memory against the plan."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    size, found, kept = "tiny" if given.small else "xl", [], None
    for microbatches, choice in GRADIENT_RUNS:
        record = {"size": size, "rows": 2, "tokens": "512+114", "gradients": choice}
        record |= {"microbatches": microbatches}
        settings = {"gradients": choice, "microbatches": microbatches, "replays": False}
        try:
            run = _after_steps(given.device, size, 2, settings)
        except RuntimeError as error:
            record["fault"] = str(error)[:300]
        else:
            record |= {"seconds": run.seconds, "gib": run.peak / 2**30}
            record |= {"formula": run.formula / 2**30, "ratio": run.peak / run.formula}
            if choice == "keep":
                kept = run
            elif kept:
                record |= _compare(kept, run)
        found.append(record)
        given.partial(found)
    return found


def _after_steps(device: str, size: str, rows: int, settings: Mapping[str, Any]) -> _Run:
    """Returns a run with random weights after `BIT_STEPS` steps."""
    asked = {"size": size, "rows": rows, "lengths": gpu.SHAPES["512+114"], "type": "bfloat16"}
    with processes.join_processes(device) as joined:
        torch.manual_seed(0)
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        engine, batches = training_torch_ours.opened(asked | settings, joined)
        losses = [engine.take(next(batches)) for _ in range(BIT_STEPS - 1)]
        began = time.perf_counter()
        losses.append(engine.take(next(batches)))
        seconds = time.perf_counter() - began
        weights = {
            name: sharding.local_rows(parameter).detach().cpu().clone()
            for name, parameter in engine.model.named_parameters()
        }
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        run = _Run(weights, losses, seconds, peak, engine.needed.total)
    del engine
    gc.collect()
    return run


# Part of a step -> a part of the names of its kernels; in this order.
_KERNELS = {
    "attention": ("fmha", "attention"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas"),
    "compiled elementwise": ("triton",),
    "other": ("",),
}


def profile(given: argparse.Namespace) -> Records:
    """Measures which kernels take the time of a step."""
    size, rows = ("tiny", 2) if given.small else ("large", 64)
    settings = {"size": size, "rows": rows, "lengths": gpu.SHAPES["512+114"]}
    settings |= {"type": "bfloat16", "compiled": not given.small, "recompute": "auto"}
    with processes.join_processes(given.device) as joined:
        engine, batches = training_torch_ours.opened(settings, joined)
        training_torch_ours.measured(engine, batches, 4)
        seconds = training_torch_ours.measured(engine, batches, 3)["seconds"] / 3
        with torch.profiler.profile() as profiler:
            training_torch_ours.measured(engine, batches, 2)
    times = dict.fromkeys(_KERNELS, 0.0)
    for event in profiler.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA or given.device == "cpu":
            kernel = event.key.lower()
            part = next(x for x, names in _KERNELS.items() if any(n in kernel for n in names))
            times[part] += (event.self_device_time_total or event.self_cpu_time_total) / 2e3
    record = {"size": size, "rows": rows, "tokens": "512+114", "seconds": seconds}
    return [record | {"what": part, "ms": time_ms} for part, time_ms in times.items()]


# The fastest system of each side.
_FASTEST = (gpu.OURS_COMPILED, "Transformers, SDPA, compiled")


def speed(given: argparse.Namespace) -> Records:
    """Measures tokens per second and MFU of our engine and of Transformers."""
    count, name = gpu.found_gpus(sys.executable) if given.device == "cuda" else (1, "")
    place = gpu.Place(sys.executable, given.device, count, name)
    cases = [gpu.Case("xl", "512+114", 16), gpu.Case("large", "512+114", 16)]
    cases += [gpu.Case("base", "512+114", 32)]
    cases += [gpu.Case("base", *case) for case in gpu.NANOT5]
    if given.small:
        cases = [gpu.Case("tiny", "512+114", 2)]
    rounds, steps = (1, 1) if given.small else (2, 20)
    found: Records = []
    for case in cases:
        # Transformers' other systems take longer with this model than the part may.
        systems = given.systems or (_FASTEST if case.size == "xl" else ())
        answers, counts = gpu.measured(case, place, rounds, steps, systems)
        found += gpu.records(case, place, answers, counts, steps)
        if published := gpu.NANOT5.get((case.shape, case.rows, case.microbatches)):
            name, seconds = published
            record = {"size": case.size, "tokens": case.shape, "rows": case.rows}
            found.append(record | {"system": f"{name} (A100)", "seconds": seconds})
        given.partial(found)
    return found


def ranking(given: argparse.Namespace) -> Records:
    """Compares the speed of our ranking with that of a plain loop over Transformers' model."""
    found: Records = []
    for size, examples in (("tiny", 24),) if given.small else (("large", 600), ("xl", 300)):
        found.append(_ranking(given, size, examples))
        given.partial(found)
    return found


def _ranking(given: argparse.Namespace, size: str, examples: int) -> dict[str, Any]:
    data = list(_examples(examples))
    device = torch.device(given.device)
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    choices = sum(len(targets) for _, targets in data)
    found = {}
    for name, score in (("ours", _our_scores), ("plain loop", _plain_scores)):
        run = score(size, data, device, dtype)
        run()
        began = time.perf_counter()
        run()
        found[name] = time.perf_counter() - began
        del run
        gc.collect()
    return {
        "size": size,
        "choices": choices,
        "ours": choices / found["ours"],
        "plain loop": choices / found["plain loop"],
        "ratio": found["plain loop"] / found["ours"],
    }


def _examples(count: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Yields inputs and choices with lengths like those of T0's evaluation."""
    draw = np.random.default_rng(0)
    for _ in range(count):
        length = int(np.clip(draw.lognormal(4.7, 0.7), 16, 900))
        yield (
            draw.integers(2, 32000, length),
            [
                draw.integers(2, 32000, draw.integers(1, 16))
                for _ in range(int(draw.choice([2, 3, 4, 5], p=[0.4, 0.3, 0.2, 0.1])))
            ],
        )


def _our_scores(
    size: str, data: list, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    from t0.evaluation.batching import BatchQueues, SortedPlan
    from t0.evaluation.ranked_examples import ChoiceGroup
    from t0.evaluation.ranking import batch_limits
    from t0.torch.evaluation import ShardedScorer

    spec = require_t5(torch_runs.run(size, rows=1, lengths={"inputs": 8, "targets": 8}).model)
    held = processes.join_processes(device.type)
    joined = held.__enter__()
    scorer = ShardedScorer(spec, joined, dtype)
    training_torch_ours.fill(scorer.model)
    groups = [
        ChoiceGroup(inputs, tuple(targets), tuple((0, n, c) for c in range(len(targets))))
        for n, (inputs, targets) in enumerate(data)
    ]
    plan = SortedPlan(batch_limits(1, None, spec.sizes.vocabulary, scorer))

    def run() -> None:
        queues = BatchQueues(plan)
        for group in groups:
            for batch in queues.add(group):
                scorer.score(batch)
        for batch in queues.flush():
            scorer.score(batch)

    run.held = held
    return run


def _plain_scores(
    size: str, data: list, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.device(device):
        model = T5ForConditionalGeneration(T5Config(**torch_runs.config(size))).to(dtype).eval()
    pairs = [(inputs, target) for inputs, targets in data for target in targets]

    def padded(rows: list[np.ndarray]) -> torch.Tensor:
        found = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for row, ids in zip(found, rows, strict=True):
            row[: len(ids)] = ids
        return torch.from_numpy(found).to(device)

    @torch.inference_mode()
    def run() -> None:
        for first in range(0, len(pairs), 32):
            inputs, targets = (
                padded(list(x)) for x in zip(*pairs[first : first + 32], strict=True)
            )
            logits = model(
                input_ids=inputs, attention_mask=(inputs > 0).long(), labels=targets
            ).logits
            nats = torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])[..., 0]
            (nats * (targets > 0)).sum(-1).cpu()

    return run


HEADINGS = {
    "bits": "The same steps twice",
    "gradients": "Five steps with each value of --gradients",
    "xxl": "A step of T5 1.1 xxl",
    "ranking": "Ranking",
    "speed": "Training speed",
    "memory": "Peak memory of training steps",
    "parity": "Tests that compare the GPU with the CPU",
    "profile": "Where the time of a step goes",
    "kernels": "Attention kernels, forward and backward",
}
PARTS: dict[str, Callable[[argparse.Namespace], Records]] = {
    "bits": bits,
    "gradients": gradients,
    "xxl": xxl,
    "ranking": ranking,
    "speed": speed,
    "memory": memories,
    "parity": parity,
    "profile": profile,
    "kernels": kernels,
}


# Field of a record -> (heading of its column, format of a number).
COLUMNS = {
    "goal": ("goal", ""),
    "found": ("measured", ""),
    "met": ("met", ""),
    "what": ("what", ""),
    "kernel": ("attention kernel", ""),
    "shape": ("model and tokens per sequence", ""),
    "ms of a layer": ("ms per layer", ".2f"),
    "TFLOP/s": ("TFLOP/s", ".1f"),
    "MiB": ("additional MiB", ",.0f"),
    "size": ("size of T5 1.1", ""),
    "rows": ("sequences", ""),
    "tokens": ("tokens per sequence", ""),
    "gradients": ("--gradients", ""),
    "microbatches": ("microbatches", "d"),
    "system": ("system", ""),
    "compiled": ("compiled", ""),
    "deterministic": ("deterministic kernels", ""),
    "equal losses": ("equal losses", ""),
    "differing": ("weights that differ", ""),
    "largest": ("largest difference", ".1e"),
    "seconds": ("s per step", ".4f"),
    "ms": ("ms", ".1f"),
    "rate": ("tokens per second", ",.0f"),
    "mfu": ("MFU", ".1%"),
    "gib": ("peak GiB", ".1f"),
    "formula": ("GiB by our formula", ".1f"),
    "choices": ("choices", ",d"),
    "ours": ("ours, choices per second", ",.0f"),
    "plain loop": ("plain loop, choices per second", ",.0f"),
    "ratio": ("ratio", ".2f"),
    "fault": ("fault", ""),
}


def table(found: Records) -> list[str]:
    """Returns records as a Markdown table of the columns for which some record has a value."""
    names = [name for name in COLUMNS if any(record.get(name) is not None for record in found)]

    def cell(record: Mapping[str, Any], name: str) -> str:
        value = record.get(name)
        if isinstance(value, bool) or value is None:
            return {True: "yes", False: "no", None: ""}[value]
        text = format(value, COLUMNS[name][1]) if isinstance(value, int | float) else str(value)
        return text.replace("|", "/")

    headings = " | ".join(COLUMNS[name][0] for name in names)
    lines = [f"| {headings} |", "|" + "---|" * len(names)]
    return lines + [f"| {' | '.join(cell(record, name) for name in names)} |" for record in found]


def verdicts(parts: Mapping[str, Records]) -> Iterator[dict[str, Any]]:
    """Yields each goal with the measured value, and whether the goal is met."""
    for record in parts.get("parity", ()):
        yield {
            "goal": "parity with the CPU: all tests pass",
            **_found(record["what"], record["met"]),
        }
    measured = [r for r in parts.get("speed", ()) if "rate" in r]
    for size, tokens, rows in dict.fromkeys((r["size"], r["tokens"], r["rows"]) for r in measured):
        same = [r for r in measured if (r["size"], r["tokens"], r["rows"]) == (size, tokens, rows)]
        ours = [r["rate"] for r in same if r["system"].startswith(gpu.OURS)]
        theirs = [r["rate"] for r in same if r["system"].startswith("Transformers")]
        if ours and theirs:
            ratio = max(ours) / max(theirs)
            goal = f"{_describe(size, rows, tokens)}: at least 1.5 times the tokens per second of "
            goal += "the fastest run of Transformers"
            yield {"goal": goal, **_found(f"{ratio:.2f} times", ratio >= 1.5)}
    large = [r for r in measured if r["size"] == "large" and r["mfu"]]
    if large:
        best = max(large, key=lambda record: record["mfu"])
        goal = f"{_describe(best['size'], best['rows'], best['tokens'])}: at least 45% MFU"
        yield {"goal": goal, **_found(f"{best['mfu']:.1%}", best["mfu"] >= 0.45)}
    for record in parts.get("memory", ()):
        if record["size"] == "xl" and "gib" in record:
            goal = f"T0-3B with {record['kernel']} attention: a training step's peak memory is "
            goal += f"within 10% of the {record['formula']:.1f} GiB that our formula gives"
            yield {
                "goal": goal,
                **_found(f"{record['gib']:.1f} GiB", abs(record["ratio"] - 1) < 0.1),
            }
    for record in parts.get("gradients", ()):
        if "differing" in record:
            goal = f"T0-3B with --gradients={record['gradients']}: after {BIT_STEPS} steps, the "
            goal += "same bits as with keep"
            yield {"goal": goal, **_found(record["differing"], record["largest"] == 0)}
    for record in parts.get("ranking", ()):
        goal = f"ranking with T5 1.1 {record['size']}: at least 3 times the choices per second of "
        goal += "a plain loop over Transformers' model"
        yield {"goal": goal, **_found(f"{record['ratio']:.2f} times", record["ratio"] >= 3)}


def _describe(size: str, rows: int, tokens: str) -> str:
    """Returns a model and the shape of its batch, as a goal starts."""
    return f"T5 1.1 {size}, {rows} sequences of {tokens.replace('+', ' + ')} tokens"


def _found(what: str, met: bool) -> dict[str, Any]:
    return {"found": what, "met": met}


def report(facts: Mapping[str, Any]) -> str:
    """Returns the measurements as a Markdown page."""
    lines = [f"# GPU acceptance: {facts['device']}", ""]
    lines += [
        "Use this page to compare your GPU with this one. `bin/gpu_acceptance` wrote this page"
    ]
    lines += [
        f"with PyTorch {facts['torch']}. The first table shows whether the GPU met our goals.",
        "",
    ]
    lines += table(list(verdicts(facts["parts"])))
    for name, found in facts["parts"].items():
        if name == "memory":  # one step after two others: too few to measure the speed
            found = [{k: v for k, v in record.items() if k != "seconds"} for record in found]
        lines += ["", f"## {HEADINGS[name]}", "", *table(found)]
    return "\n".join(lines) + "\n"


def run_part(name: str, given: argparse.Namespace) -> Records:
    """Runs a part in its own process; returns the results that it wrote before it ended."""
    path = given.output / f"{name}.json"
    path.unlink(missing_ok=True)
    words = [f"--device={given.device}", f"--output={given.output}", "--part", name]
    words += ["--small"] if given.small else []
    words += ["--systems", *given.systems] if given.systems else []
    print(f"{name}: up to {LIMITS[name]} s", file=sys.stderr, flush=True)
    try:
        subprocess.run(
            [sys.executable, "-W", "ignore", __file__, *words], timeout=LIMITS[name], check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"{name}: {error!s:.200}", file=sys.stderr)
    return json.loads(path.read_text()) if path.exists() else []


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the program")
    parser.add_argument("--output", type=Path, default=Path("gpu_acceptance"))
    parser.add_argument("--systems", nargs="+", default=[], help="of the part speed")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "gpu_acceptance: PyTorch finds no GPU here; --device=cpu --small tries the program"
        )
    given.output.mkdir(parents=True, exist_ok=True)
    if given.part:
        path = given.output / f"{given.part}.json"
        given.partial = lambda found: path.write_text(json.dumps(found, indent=1))
        given.partial(PARTS[given.part](given))
        return
    name = torch.cuda.get_device_name() if given.device == "cuda" else "a processor"
    facts: dict[str, Any] = {"device": name, "torch": torch.__version__, "parts": {}}
    for part in given.parts:
        began = time.monotonic()
        facts["parts"][part] = run_part(part, given)
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        (given.output / "gpu_acceptance.json").write_text(json.dumps(facts, indent=1))
        (given.output / "gpu_acceptance.md").write_text(report(facts))
    print(report(facts))


if __name__ == "__main__":
    main()
