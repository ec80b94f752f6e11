"""Plans a training run on GPUs with PyTorch: memory, options and step time.

    plan = gpu_plan("a100-80", gpus=8, utilisation=0.4)      # parse gin first
    plan["verdict"]["word"]                                  # "fits"
    print(plan_text(plan))

The plan uses the formulas in `t0.torch.memory`, with which the PyTorch engine chooses its options.
It does not import PyTorch. It ignores communication between GPUs. With NVLink, most communication
overlaps with computation. With other links, it may not.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from t0.compat import gin
from t0.config.model_spec import require_t5
from t0.errors import UserError
from t0.feeding import data_spec
from t0.mesh import formulas
from t0.mesh.plan import gib
from t0.mesh.pod_run import configured_vocabulary_size
from t0.run import run_arguments, spec_from_gin
from t0.torch import memory

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
_LEAST_MEMORY = memory.MemorySwitches(keep=False, recompute=True)
_MICROBATCH = "serialize_num_microbatches.tokens_per_microbatch_per_replica"


def gpu_plan(gpu: str, gpus: int, utilisation: float) -> dict[str, Any]:
    """Returns the plan of the configured run as a dict that can be written as JSON.

    Args:
      gpu: the GPU's name in `t0.torch.memory.GPUS`.
      gpus: the number of GPUs, summed over all machines.
      utilisation: the share of the peak FLOP/s that matrix products reach.

    Raises:
      UserError: the run cannot work.
    """
    card = memory.find_gpu(gpu)
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation {utilisation}: expected a share above 0 and up to 1")
    read = _read_run(gpus)
    size, source = configured_vocabulary_size()
    shape = require_t5(spec_from_gin.model_spec(read, size, size)).sizes
    lengths, batch = read["sequence_length"], read["batch_size"]
    microbatches = memory.count_microbatches(batch, spec_from_gin.microbatches(read), gpus)
    bytes_each = 4 if card.teraflops is None else 2
    optimizer = spec_from_gin.configured("run.optimizer")
    adapter = spec_from_gin.configured_adapter()
    has_choices = bool(data_spec.ChoiceLosses())

    def needed(
        count: int, switches: memory.MemorySwitches = _LEAST_MEMORY, processes: int = gpus
    ) -> memory.Needed:
        """Returns the memory of each process, if it computes `count` microbatches."""
        rows = batch // processes // count
        return memory.needed(
            shape,
            optimizer,
            memory.MicrobatchShare(rows, lengths["inputs"], lengths["targets"], bytes_each),
            switches,
            processes=processes,
            microbatches=count,
            replays=processes == 1 and not switches.recompute and not has_choices,
            adapter=adapter,
        )

    usable = int(memory.USABLE * card.bytes)
    choices = memory.memory_switches()
    requirements = [needed(microbatches, each) for each in choices]
    chosen = memory.first_that_fits(requirements, usable)
    switches, required = choices[chosen], requirements[chosen]
    numbers = f"{gib(required.total)} of {gib(usable)} usable on {card.name}"
    verdict = {"word": FITS, "reason": f"{numbers}, {gib(usable - required.total)} to spare"}
    if required.total > usable:
        change = _find_fitting_change(
            needed, batch, gpus, microbatches, max(lengths.values()), usable
        )
        verdict = {"word": TOO_LARGE, "reason": f"{numbers}{change}"}
    flops = memory.model_flops(shape, rows=batch, **lengths, adapter=adapter is not None)
    return {
        "schema": 1,
        "engine": "torch",
        "gpu": {"name": card.name, "gpus": gpus, "bytes": card.bytes, "source": card.source},
        "batch": {
            "sequences": batch,
            "sequence_length": dict(lengths),
            "sequences_per_gpu": batch // gpus,
            "microbatches": microbatches,
            "sequences_per_microbatch": batch // gpus // microbatches,
            "answer_choices": has_choices,
        },
        "vocabulary": {"size": size, "source": source},
        "parameters": formulas.parameters(shape),
        "switches": {
            "activation_dtype": "bfloat16" if bytes_each == 2 else "float32",
            "recompute": switches.recompute,
            "keep_gathered": switches.keep,
            "microbatches": microbatches,
            "tf32": card.teraflops is not None,  # Ampere and later GPUs have bfloat16 and TF32
        },
        "per_gpu_bytes": dataclasses.asdict(required) | {"total": required.total, "usable": usable},
        "verdict": verdict,
        "flops": {"per_step": flops},
        "time": _estimate_time(
            card,
            flops,
            utilisation,
            gpus,
            read["train_steps"],
            # Recomputation repeats the forward pass. MFU does not count this.
            (3 / 2 if adapter else 4 / 3) if switches.recompute else 1,
        ),
    }


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


def _find_fitting_change(
    needed: Callable[..., memory.Needed],
    batch: int,
    gpus: int,
    microbatches: int,
    length: int,
    usable: int,
) -> str:
    """Returns the end of a reason: the smaller microbatches, or the GPUs, with which a run fits."""
    for count in range(microbatches + 1, batch // gpus + 1):
        if batch // gpus % count == 0 and needed(count).total <= usable:
            tokens = batch // gpus // count * length
            return f'; it fits with --gin_param="{_MICROBATCH} = {tokens}"'
    for more in range(gpus + 1, batch + 1):
        fits = (needed(count, processes=more).total <= usable for count in {1, batch // more})
        if batch % more == 0 and any(fits):
            return f"; it fits {more} such GPUs"
    return ", on any number of such GPUs"


def _estimate_time(
    card: memory.Gpu, flops: int, utilisation: float, gpus: int, steps: int, passes: float
) -> dict[str, Any]:
    """Returns the step time at `utilisation` of the peak FLOP/s; empty if the peak is unknown."""
    if card.teraflops is None:
        return {}
    seconds = flops * passes / (gpus * utilisation * card.teraflops * 1e12)
    return {
        "step_seconds": seconds,
        "model_flops_utilization": flops / (gpus * seconds * card.teraflops * 1e12),
        "peak_flops_per_gpu": card.teraflops * 1e12,
        "utilisation": utilisation,
        "hours_per_1000_steps": seconds * 1000 / 3600,
        "train_steps": steps,
    }


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
    )
    yield (
        f"switches: activations in {switches['activation_dtype']}, "
        f"--recompute={'on' if switches['recompute'] else 'off'}, "
        f"float32 products in {'TF32 (--no_tf32)' if switches['tf32'] else 'full'}, "
        f"PyTorch's {memory.KERNEL} attention kernel"
    )
    yield ""
    yield "memory per GPU at the peak of a step"
    for key, size in plan["per_gpu_bytes"].items():
        yield f"  {_KINDS[key]:<42} {size:>16,} bytes  {gib(size):>10}"
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
