"""The plan of a training run on GPUs by PyTorch: memory, what is switched on, the time of a step.

    plan = gpu_plan("a100-80", gpus=8, utilisation=0.4)      # after gin has been parsed
    plan["verdict"]["word"]                                  # "fits"
    print(plan_text(plan))

It is only a formula (`t0.torch.memory`), the same that the engine uses at its start, and imports
no PyTorch. Communication is left out: NVLink hides most of it, other links may not.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from t0.compat import gin
from t0.errors import UserError
from t0.mesh import formulas
from t0.mesh.plan import gib
from t0.mesh.pod_run import configured_vocabulary_size
from t0.run import arguments as run_arguments
from t0.run import specify
from t0.torch import gpus as gpu_table
from t0.torch import memory
from t0.torch.shape import t5

FITS, TOO_LARGE = "fits", "does not fit"
_KINDS = {
    "weights": "weights, float32, sharded",
    "slots": "optimizer's slots, float32, sharded",
    "gradients": "gradients, float32",
    "gathered": "gathered weights, their gradients",
    "activations": "activations",
    "logits": "logits and their gradients",
    "update": "the optimizer's update, after the others",
    "total": "total at the fullest moment",
    "usable": "usable",
}
# Arguments of `run` that a plan does not need.
_UNREAD = ("vocabulary", "tpu_job_name", "tpu", "gcp_project", "tpu_zone")
_FRUGAL = memory.MemorySwitches(keep=False, recompute=True)
_MICROBATCH = "serialize_num_microbatches.tokens_per_microbatch_per_replica"


def gpu_plan(gpu: str, gpus: int, utilisation: float) -> dict[str, Any]:
    """Returns the plan of the run that gin configures, as one JSON-ready object.

    Args:
      gpu: a name of `t0.torch.gpus`.
      gpus: the number of GPUs, of all machines.
      utilisation: share of the peak FLOP/s that matrix products reach.

    Raises:
      UserError: for a run that cannot work.
    """
    card = gpu_table.find(gpu)
    if gpus < 1:
        raise UserError(f"--gpus={gpus}: wanted a number of GPUs, from 1 on")
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation {utilisation}: wanted a share, above 0 and up to 1")
    given = dict.fromkeys(_UNREAD) | {"model_dir": "", "mesh_shape": "", "mesh_devices": [""]}
    for name, value in given.items():  # so that gin does not evaluate what they replace
        gin.bind_parameter(f"run.{name}", value)
    read = run_arguments.read(given)
    if read["mode"] != "train":
        raise UserError(f"run.mode is {read['mode']!r}; --engine=torch plans training alone")
    size, source = configured_vocabulary_size()
    shape = t5(specify.model_spec(read, size, size)).sizes
    lengths, batch = read["sequence_length"], read["batch_size"]
    if batch % gpus:
        raise UserError(
            f"a batch of {batch} sequences cannot be divided over {gpus} GPUs; wanted a multiple "
            f"of {gpus} (run.batch_size)"
        )
    parts = memory.count_microbatches(batch, specify.microbatches(read), gpus)
    bytes_each = 4 if card.teraflops is None else 2
    case = _Case(shape, specify.configured("run.optimizer"), batch, lengths, bytes_each, gpus)
    usable = int(memory.USABLE * card.bytes)
    choices = memory.memory_switches()
    needs = [case.needed(parts, each) for each in choices]
    chosen = memory.first_that_fits(choices, needs, usable)
    switches, needed = choices[chosen], needs[chosen]
    flops = memory.model_flops(shape, rows=batch, **lengths)
    return {
        "schema": 1,
        "engine": "torch",
        "gpu": {"name": card.name, "gpus": gpus, "bytes": card.bytes, "source": card.source},
        "batch": {
            "sequences": batch,
            "sequence_length": dict(lengths),
            "sequences_per_gpu": batch // gpus,
            "microbatches": parts,
            "sequences_per_microbatch": batch // gpus // parts,
        },
        "vocabulary": {"size": size, "source": source},
        "parameters": formulas.parameters(shape),
        "switches": {
            "activation_dtype": "bfloat16" if bytes_each == 2 else "float32",
            "recompute": switches.recompute,
            "keep_gathered": switches.keep,
            "microbatches": parts,
            "tf32": card.teraflops is not None,  # Ampere and later have both
        },
        "per_gpu_bytes": {
            **dataclasses.asdict(needed),
            "total": needed.total,
            "usable": usable,
        },
        "verdict": _verdict(case, parts, needed, usable, card.name),
        "flops": {"per_step": flops},
        "time": _time(card, flops, utilisation, gpus, read["train_steps"], switches.recompute),
    }


@dataclasses.dataclass(frozen=True)
class _Case:
    shape: Any
    optimizer: Any
    batch: int
    lengths: dict[str, int]
    bytes_each: int
    gpus: int

    def needed(
        self, parts: int, switches: memory.MemorySwitches = _FRUGAL, *, gpus: int | None = None
    ) -> memory.Needed:
        gpus = gpus or self.gpus
        rows = self.batch // gpus // parts
        part = memory.MicrobatchShare(
            rows, self.lengths["inputs"], self.lengths["targets"], self.bytes_each
        )
        return memory.needed(
            self.shape,
            self.optimizer,
            part,
            switches,
            processes=gpus,
            microbatches=parts,
            replays=gpus == 1 and not switches.recompute,
        )


def _verdict(
    case: _Case, parts: int, needed: memory.Needed, usable: int, name: str
) -> dict[str, str]:
    """Returns whether the run fits, as a word and a reason, with a change that would fit."""
    numbers = f"{gib(needed.total)} of {gib(usable)} usable on {name}"
    if needed.total <= usable:
        return {"word": FITS, "reason": f"{numbers}, {gib(usable - needed.total)} to spare"}
    own = case.batch // case.gpus
    for count in range(parts + 1, own + 1):
        if own % count == 0 and case.needed(count).total <= usable:
            tokens = own // count * max(case.lengths.values())
            return {
                "word": TOO_LARGE,
                "reason": f'{numbers}; it fits with --gin_param="{_MICROBATCH} = {tokens}"',
            }
    for gpus in range(case.gpus + 1, case.batch + 1):
        if case.batch % gpus:
            continue
        rows = case.batch // gpus
        if min(case.needed(n, gpus=gpus).total for n in {1, rows}) <= usable:
            return {"word": TOO_LARGE, "reason": f"{numbers}; it fits {gpus} such GPUs"}
    return {"word": TOO_LARGE, "reason": f"{numbers}, on any number of such GPUs"}


def _time(
    card: gpu_table.Gpu, flops: int, utilisation: float, gpus: int, steps: int, recompute: bool
) -> dict[str, Any]:
    """Returns the time of a step at a share of the GPU's peak; empty if the peak is unknown."""
    if card.teraflops is None:
        return {}
    # Recomputing repeats the forward pass, a third of a step; MFU does not count it.
    seconds = flops * (4 / 3 if recompute else 1) / (gpus * utilisation * card.teraflops * 1e12)
    return {
        "step_seconds": seconds,
        "model_flops_utilization": flops / (gpus * seconds * card.teraflops * 1e12),
        "peak_flops_per_gpu": card.teraflops * 1e12,
        "utilisation": utilisation,
        "hours_per_1000_steps": seconds * 1000 / 3600,
        "train_steps": steps,
    }


def plan_text(plan: dict[str, Any]) -> str:
    """Returns the plan in words and numbers."""
    return "\n".join(_lines(plan))


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    gpu, batch, switches = plan["gpu"], plan["batch"], plan["switches"]
    yield (
        f"train by PyTorch on {gpu['gpus']} x {gpu['name']}: {gib(gpu['bytes'])} each "
        f"({gpu['source']}; by formulas, nothing here was run on a GPU)"
    )
    lengths = " + ".join(f"{n} {name}" for name, n in batch["sequence_length"].items())
    yield (
        f"batch: {batch['sequences']:,} sequences of {lengths}; {batch['sequences_per_gpu']:,} a "
        f"GPU = {batch['microbatches']} microbatches x {batch['sequences_per_microbatch']}"
    )
    vocabulary = plan["vocabulary"]
    yield (
        f"parameters: {plan['parameters']:,} (vocabulary {vocabulary['size']:,}: "
        f"{vocabulary['source']})"
    )
    yield (
        f"switches: activations in {switches['activation_dtype']}, "
        f"--recompute={'on' if switches['recompute'] else 'off'}, "
        f"float32 products in {'TF32 (--no_tf32)' if switches['tf32'] else 'full'}"
    )
    yield ""
    yield "memory of a GPU"
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
        f"{time['peak_flops_per_gpu'] / 1e12:.0f} TFLOP/s, communication left out; "
        f"{plan['flops']['per_step']:.4g} FLOPs; {time['hours_per_1000_steps']:.2f} h/1,000 steps"
    )
