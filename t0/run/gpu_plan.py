"""Plans a training run on GPUs with PyTorch: memory, options and step time.

    plan = gpu_plan("a100-80", 8, utilisation=0.4)           # parse gin first
    plan["verdict"]["word"]                                  # "fits"
    print(plan_text(plan))
    print(cards_text(cards_plan(1, utilisation=0.34), 0.34)) # a line for each type of GPU

The plan uses the formulas in `t0.torch.memory`, with which the PyTorch engine chooses its options.
It does not import PyTorch. It ignores communication between GPUs. With NVLink, most communication
overlaps with computation. With other links, it may not.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from t0.compat import gin
from t0.config.bindings import bound
from t0.config.model_spec import ModelShape, require_t5
from t0.config.specification import AdapterSpec, ConfiguredSpec
from t0.errors import UserError
from t0.feeding import data_spec
from t0.mesh import formulas
from t0.mesh.plan import gib, step_of_checkpoint
from t0.mesh.pod_run import configured_vocabulary_size
from t0.run import run_arguments, spec_from_gin
from t0.run.checkpoint_checks import check_base
from t0.text_tables import table_lines, terminal_width
from t0.torch import gpus, memory

FITS, TOO_LARGE = "fits", "does not fit"
_KINDS = {
    "weights": "weights, float32, sharded",
    "slots": "optimizer slots, float32, sharded",
    "gradients": "gradients, float32",
    "gathered": "gathered weights and their gradients",
    "activations": "activations",
    "logits": "logits and their gradients",
    "update": "optimizer update",
    "total": "total at peak",
    "usable": "usable",
}
# Arguments of `run` that a plan does not need.
_UNREAD = ("vocabulary", "tpu_job_name", "tpu", "gcp_project", "tpu_zone")
_MICROBATCH = "serialize_num_microbatches.tokens_per_microbatch_per_replica"


@dataclasses.dataclass(frozen=True)
class _Run:
    """The configured run, as the formulas need it.

    Attributes:
      read: the arguments of the run.
      shape: the sizes of the model.
      optimizer: the optimizer.
      adapter: the adapter that is trained, or None.
      choices: whether the run trains on answer choices.
      gradients: the values of `MemorySwitches.gradients` to choose from.
      gpus: the number of GPUs.
      microbatches: the number of microbatches of each GPU.
      work: the work of a step.
    """

    read: dict[str, Any]
    shape: ModelShape
    optimizer: ConfiguredSpec
    adapter: AdapterSpec | None
    choices: bool
    gradients: tuple[str, ...]
    gpus: int
    microbatches: int
    work: gpus.StepWork

    def needed(
        self,
        card: gpus.Gpu,
        count: int,
        switches: memory.MemorySwitches,
        processes: int | None = None,
    ) -> memory.Needed:
        """Returns the memory of each process, if it computes `count` microbatches."""
        processes, lengths = processes or self.gpus, self.read["sequence_length"]
        rows = self.read["batch_size"] // processes // count
        return memory.needed(
            self.shape,
            self.optimizer,
            memory.MicrobatchShare(rows, lengths["inputs"], lengths["targets"], _bytes_each(card)),
            switches,
            processes=processes,
            microbatches=count,
            replays=memory.can_replay(switches, self.adapter, processes, choices=self.choices),
            adapter=self.adapter,
        )

    def choose(
        self, card: gpus.Gpu, utilisation: float
    ) -> tuple[memory.MemorySwitches, memory.Needed]:
        """Returns the switches that the engine would choose, and the memory that they need."""

        def time(switches: memory.MemorySwitches) -> float:
            return gpus.step_seconds(card, self.work, switches, utilisation)

        choices = memory.memory_switches(
            gradients=self.gradients, time=time if card.teraflops else None
        )
        needs = [self.needed(card, self.microbatches, each) for each in choices]
        chosen = memory.first_that_fits(needs, _usable(card))
        return choices[chosen], needs[chosen]


def _configured_run(count: int, gradients: str) -> tuple[_Run, dict[str, Any]]:
    """Returns the configured run on `count` GPUs, and its vocabulary as the plan shows it."""
    read = _read_run(count)
    size, source = configured_vocabulary_size()
    shape = require_t5(spec_from_gin.model_spec(read, size, size)).sizes
    batch = read["batch_size"]
    microbatches = memory.count_microbatches(batch, spec_from_gin.microbatches(read), count)
    check_base()
    adapter = spec_from_gin.configured_adapter()
    clips = bound("t0.apply_updates.clip_gradient_norm") is not None
    flops = memory.model_flops(
        shape, rows=batch, **read["sequence_length"], adapter=adapter is not None
    )
    run = _Run(
        read,
        shape,
        spec_from_gin.configured("run.optimizer"),
        adapter,
        bool(data_spec.ChoiceLosses()),
        memory.gradient_choices(
            gradients, sequences=batch, microbatches=microbatches, processes=count, clips=clips
        ),
        count,
        microbatches,
        gpus.StepWork(
            flops,
            count,
            microbatches,
            memory.host_bytes(shape, adapter),
            clips=clips,
            adapter=adapter is not None,
        ),
    )
    return run, {"size": size, "source": source}


def _check_utilisation(utilisation: float) -> None:
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation {utilisation}: expected a share above 0 and up to 1")


def _usable(card: gpus.Gpu) -> int:
    return int(memory.USABLE * card.bytes)


def _bytes_each(card: gpus.Gpu) -> int:
    """Returns the size of an activation."""
    return 4 if card.teraflops is None else 2


def cards_plan(count: int, utilisation: float, gradients: str = "auto") -> list[dict[str, Any]]:
    """Returns a row for each type of GPU, in ascending order of memory, for `t0 plan`.

    Args:
      count: the number of GPUs, summed over all machines.
      utilisation: the share of the peak FLOP/s that matrix products reach.
      gradients: one of `memory.GRADIENTS`.

    Raises:
      UserError: the run cannot work.
    """
    _check_utilisation(utilisation)
    run, _ = _configured_run(count, gradients)
    rows: list[dict[str, Any]] = []
    for card in sorted(gpus.GPUS, key=lambda each: each.bytes):
        switches, required = run.choose(card, utilisation)
        time = _estimate_time(card, run, switches, utilisation)
        fits = required.total <= _usable(card)
        rows.append(
            {
                "gpu": card.name,
                "verdict": FITS if fits else TOO_LARGE,
                "smallest": fits and not any(row["verdict"] == FITS for row in rows),
                "gradients": switches.gradients,
                "recompute": switches.recompute,
                "bytes": required.total,
                "usable": _usable(card),
                "host_bytes": required.host,
                "hours_per_1000_steps": time.get("hours_per_1000_steps"),
            }
        )
    return rows


def gpu_plan(
    gpu: str, count: int, utilisation: float, gradients: str = "auto", start_step: int | None = None
) -> dict[str, Any]:
    """Returns the plan of the configured run as a dict that can be written as JSON.

    Args:
      gpu: the GPU's name in `t0.torch.gpus.GPUS`.
      count: the number of GPUs, summed over all machines.
      utilisation: the share of the peak FLOP/s that matrix products reach.
      gradients: one of `memory.GRADIENTS`.
      start_step: the step of the initial checkpoint; None to read it from the checkpoint's name.

    Raises:
      UserError: the run cannot work.
    """
    card = gpus.find_gpu(gpu)
    _check_utilisation(utilisation)
    run, vocabulary = _configured_run(count, gradients)
    batch, own = run.read["batch_size"], run.read["batch_size"] // count
    switches, required = run.choose(card, utilisation)
    usable = _usable(card)
    numbers = f"{gib(required.total)} of {gib(usable)} usable on {card.name}"
    verdict = {"word": FITS, "reason": f"{numbers}, {gib(usable - required.total)} to spare"}
    if required.total > usable:
        verdict = {"word": TOO_LARGE, "reason": f"{numbers}{_find_fitting_change(run, card)}"}
    time = _estimate_time(card, run, switches, utilisation)
    per_gpu = dataclasses.asdict(required) | {"total": required.total, "usable": usable}
    return {
        "schema": 1,
        "engine": "torch",
        "gpu": {"name": card.name, "gpus": count, "bytes": card.bytes, "source": card.source},
        "batch": {
            "sequences": batch,
            "sequence_length": dict(run.read["sequence_length"]),
            "sequences_per_gpu": own,
            "microbatches": run.microbatches,
            "sequences_per_microbatch": own // run.microbatches,
            "answer_choices": run.choices,
        },
        "vocabulary": vocabulary,
        "parameters": formulas.parameters(run.shape),
        "switches": {
            "activation_dtype": "bfloat16" if _bytes_each(card) == 2 else "float32",
            "recompute": switches.recompute,
            "keep_gathered": switches.keep,
            "gradients": switches.gradients,
            "microbatches": run.microbatches,
            "tf32": card.teraflops is not None,  # Ampere and later GPUs have bfloat16 and TF32
        },
        "host_bytes": per_gpu.pop("host"),
        "per_gpu_bytes": per_gpu,
        "verdict": verdict,
        "flops": {"per_step": run.work.flops},
        **_describe_adapter(run, required.weights),
        "time": time,
        "run": _whole_run(run, time, start_step),
    }


def _describe_adapter(run: _Run, weights: int) -> dict[str, Any]:
    """Returns the bytes of trained and frozen weights on each GPU, if an adapter is trained."""
    if run.adapter is None:
        return {}
    trained = memory.host_bytes(run.shape, run.adapter)
    return {
        "adapter": {
            "method": run.adapter.method,
            "base": run.adapter.base,
            "parameters": trained // formulas.FLOAT32_BYTES,
            "trained_bytes": trained // run.gpus,
            "frozen_bytes": weights - trained // run.gpus,
        }
    }


def _whole_run(run: _Run, time: dict[str, Any], start_step: int | None) -> dict[str, Any]:
    """Returns the steps, hours and GPU-hours of the run; {} if the time of a step is unknown."""
    if not time:
        return {}
    if start_step is None:
        start_step = step_of_checkpoint(bound("run.init_checkpoint"))
    steps = max(0, run.read["train_steps"] - start_step)
    hours = steps * time["step_seconds"] / 3600
    return {"steps": steps, "hours": hours, "gpu_hours": run.gpus * hours}


def _read_run(gpus: int) -> dict[str, Any]:
    """Returns the arguments of the configured training run; checks that the GPUs can share it."""
    replaced = dict.fromkeys(_UNREAD) | {"model_dir": "", "mesh_shape": "", "mesh_devices": [""]}
    for name, value in replaced.items():  # so that gin does not evaluate the replaced values
        gin.bind_parameter(f"run.{name}", value)
    read = run_arguments.read(replaced)
    if read["mode"] != "train":
        raise UserError(f"run.mode is {read['mode']!r}; --engine=torch only plans training")
    batch = read["batch_size"]
    if batch % gpus:
        raise UserError(
            f"a batch of {batch} sequences cannot be divided among {gpus} GPUs; expected a "
            f"multiple of {gpus} (run.batch_size)"
        )
    return read


def _find_fitting_change(run: _Run, card: gpus.Gpu) -> str:
    """Returns the end of a reason: the smaller microbatches, or the GPUs, with which a run fits."""
    batch, usable = run.read["batch_size"], _usable(card)
    own, length = batch // run.gpus, max(run.read["sequence_length"].values())
    several = "offload" if "offload" in run.gradients else "keep"
    least = memory.MemorySwitches(keep=False, recompute=True, gradients=several)
    for count in range(run.microbatches + 1, own + 1):
        if own % count == 0 and run.needed(card, count, least).total <= usable:
            return f'; it fits with --gin_param="{_MICROBATCH} = {own // count * length}"'
    least = memory.MemorySwitches(keep=False, recompute=True)
    for more in range(run.gpus + 1, batch + 1):
        counts = {1, batch // more}
        fits = (run.needed(card, count, least, more).total <= usable for count in counts)
        if batch % more == 0 and any(fits):
            return f"; it fits {more} such GPUs"
    return ", on any number of such GPUs"


def _estimate_time(
    card: gpus.Gpu, run: _Run, switches: memory.MemorySwitches, utilisation: float
) -> dict[str, Any]:
    """Returns the step time at `utilisation` of the peak FLOP/s; empty if the peak is unknown."""
    if card.teraflops is None:
        return {}
    seconds = gpus.step_seconds(card, run.work, switches, utilisation)
    time = {
        "step_seconds": seconds,
        "model_flops_utilization": run.work.flops / (run.gpus * seconds * card.teraflops * 1e12),
        "peak_flops_per_gpu": card.teraflops * 1e12,
        "utilisation": utilisation,
        "hours_per_1000_steps": seconds * 1000 / 3600,
        "train_steps": run.read["train_steps"],
    }
    if switches.gradients == "offload":
        own = run.read["batch_size"] // run.gpus // run.microbatches
        tokens = own * max(run.read["sequence_length"].values())
        time["hiding_tokens"] = gpus.hiding_tokens(card, run.work, switches, utilisation, tokens)
    return time


def plan_text(plan: dict[str, Any]) -> str:
    """Formats a plan as text."""
    return "\n".join(_lines(plan))


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    gpu, batch, switches = plan["gpu"], plan["batch"], plan["switches"]
    yield (
        f"train with PyTorch on {gpu['gpus']} x {gpu['name']}: {gib(gpu['bytes'])} each "
        f"({gpu['source']}; computed with formulas, without a GPU)"
    )
    lengths = " + ".join(f"{n} {name}" for name, n in batch["sequence_length"].items())
    yield (
        f"batch: {batch['sequences']:,} sequences of {lengths}; {batch['sequences_per_gpu']:,} per "
        f"GPU = {batch['microbatches']} microbatches x {batch['sequences_per_microbatch']}"
    )
    if batch["answer_choices"]:
        yield (
            "answer choices: their number is unknown before the data is read. The plan counts one "
            "choice of each example, so the run needs more memory and time"
        )
    vocabulary = plan["vocabulary"]
    yield (
        f"parameters: {plan['parameters']:,} (vocabulary {vocabulary['size']:,}: "
        f"{vocabulary['source']})"
        + (f", frozen; trained: {plan['adapter']['parameters']:,}" if "adapter" in plan else "")
    )
    yield (
        f"switches: activations in {switches['activation_dtype']}, "
        f"--recompute={'on' if switches['recompute'] else 'off'}, "
        f"--gradients={switches['gradients']}, "
        f"float32 products in {'TF32 (--no_tf32)' if switches['tf32'] else 'full'}, "
        f"PyTorch's {memory.KERNEL} attention kernel"
    )
    yield ""
    yield "memory per GPU at the peak of a step"
    for kind, size in _kinds_of_memory(plan):
        yield f"  {kind:<42} {_bytes_column(size)}"
    if plan["host_bytes"]:
        yield f"  {'gradients in host memory, float32':<42} {_bytes_column(plan['host_bytes'])}"
    yield f"VERDICT: {plan['verdict']['word']}: {plan['verdict']['reason']}"
    time = plan["time"]
    yield ""
    if not time:
        yield f"step: {plan['flops']['per_step']:.4g} FLOPs; {gpu['name']} has no bfloat16 products"
        return
    yield (
        f"step: {time['step_seconds']:.3f} s at {time['utilisation']:.0%} of "
        f"{time['peak_flops_per_gpu'] / 1e12:.0f} TFLOP/s, without communication; "
        f"{plan['flops']['per_step']:.4g} FLOPs; {time['hours_per_1000_steps']:.2f} h/1,000 steps"
    )
    run = plan["run"]
    yield f"run: {run['steps']:,} steps: {run['hours']:.1f} h, {run['gpu_hours']:,.1f} GPU-hours"
    if "hiding_tokens" in time:
        yield (
            "copies to host memory: microbatches of at least "
            f'{time["hiding_tokens"]:,} tokens hide them ("{_MICROBATCH} = ...")'
        )


def _kinds_of_memory(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    sizes = {_KINDS[key]: size for key, size in plan["per_gpu_bytes"].items()}
    if adapter := plan.get("adapter"):
        del sizes[_KINDS["weights"]]
        base, method = adapter["base"], adapter["method"]
        form = f"{plan['switches']['activation_dtype']}, sharded" if base == "full" else base
        yield f"frozen weights, {form}", adapter["frozen_bytes"]
        yield f"trained weights ({method}), float32, sharded", adapter["trained_bytes"]
    yield from sizes.items()


def _bytes_column(size: int) -> str:
    return f"{size:>16,} bytes  {gib(size):>10}"


def cards_text(rows: Sequence[dict[str, Any]], utilisation: float) -> str:
    """Formats the rows of `cards_plan` as a table."""
    columns = ("GPU", "verdict", "needs GiB", "usable", "host", "gradients", "recompute", "hours")
    cells = [
        (
            row["gpu"],
            row["verdict"] + (" (smallest)" if row["smallest"] else ""),
            *(f"{row[key] / 2**30:.2f}" for key in ("bytes", "usable", "host_bytes")),
            row["gradients"],
            "on" if row["recompute"] else "off",
            "" if row["hours_per_1000_steps"] is None else f"{row['hours_per_1000_steps']:.1f}",
        )
        for row in rows
    ]
    right = ("needs GiB", "usable", "host", "hours")
    lines = table_lines(columns, cells, right=right, width=terminal_width())
    return "\n".join(
        [
            *lines,
            f"hours: of 1,000 steps, at {utilisation:.0%} of the peak bfloat16 FLOP/s; "
            "--gpu=NAME prints the plan of one GPU",
        ]
    )
