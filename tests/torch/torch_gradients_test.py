"""`--gradients`: the same bits for each value, also after a resume with another one; refusals."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch_runs  # noqa: E402

from t0.config.specification import AdapterSpec, ConfiguredSpec  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.torch import checkpointing, gradients, memory, processes, torch_session  # noqa: E402
from t0.training.loop import LoopOptions  # noqa: E402

ROWS, STEPS = 4, 20
LENGTHS = {"inputs": 24, "targets": 8}
VOCABULARY = 256
ADAMW = ConfiguredSpec(
    "t0.AdamWScaleOptimizer",
    {"weight_decay_rate": 0.01, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8, "offset": 0},
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other on small tensors
    yield
    torch.set_num_threads(before)


def spec_of(folder="", *, tied=False, **changes):
    """A run of a small T5 whose large matrices are factored by Adafactor."""
    changes = {"microbatches": 1, **changes}
    spec = torch_runs.run("tiny", rows=ROWS, lengths=LENGTHS, microbatches=changes["microbatches"])
    sizes = dataclasses.replace(
        spec.model.t5.sizes, vocabulary=VOCABULARY, d_model=128, d_ff=160, tied=tied
    )
    model = dataclasses.replace(spec.model, t5=dataclasses.replace(spec.model.t5, sizes=sizes))
    return dataclasses.replace(spec, model=model, model_dir=str(folder), **changes)


def batch(step):
    draw = np.random.default_rng(step)
    return {n: draw.integers(2, VOCABULARY, (ROWS, x)).astype(np.int32) for n, x in LENGTHS.items()}


def steps_of(spec, choice, first=0, last=STEPS, dtype=torch.float32, **options):
    """Takes steps, from the checkpoint of step `first`; returns (engine, measurements)."""
    with processes.join_processes("cpu") as world:
        compute = torch_session.ComputeOptions(dtype, gradients=choice, **options)
        engine = torch_session.TorchEngine(
            spec, LoopOptions(train_steps=STEPS), None, world, compute
        )
        if first:
            engine.checkpoints.restore(first)
            engine._step = first
        elif last:
            engine.fill_at_random()
            if spec.adapter:
                checkpointing.fill_adapter(engine.model, spec.seed, world)
        measured = [engine.take(batch(step)) for step in range(first, last)]
        if spec.model_dir and last:
            engine.save(last, {"began": 0, "seed": 0, "position": None}, None)
        return engine, measured


def state(engine):
    """Name -> bits of a weight or of a slot of the optimizer."""
    values = {n: p.detach().to_local() for n, p in engine.model.named_parameters()}
    values |= {name: slot.value for name, slot in engine._optimizer.slots.items()}
    return {name: value.contiguous().view(torch.uint8) for name, value in values.items()}


def check_equal(first, second):
    assert first[1] == second[1]  # losses, and the norms of gradients and weights
    one, other = state(first[0]), state(second[0])
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def checkpoint_bits(folder):
    """Name -> bytes of a tensor in the only file of a checkpoint, whose order may differ."""
    (path,) = folder.glob("*.safetensors")
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    offsets = {name: each["data_offsets"] for name, each in header.items()}
    return {n: content[start + first : start + last] for n, (first, last) in offsets.items()}


RUNS = {
    "fused": ("fused", {}),
    "fused, tied": ("fused", {"tied": True}),
    "fused, AdamW": ("fused", {"optimizer": ADAMW}),
    "fused, some weights": ("fused", {"variable_filter": "encoder|logits|shared"}),
    "fused, LoRA": ("fused", {"adapter": AdapterSpec("lora", rank=2)}),
    "offload": ("offload", {"microbatches": 4}),
    "offload, clipped": ("offload", {"microbatches": 2, "clip_gradient_norm": 0.3}),
    "offload, clipped, AdamW": ("offload", {"clip_gradient_norm": 0.3, "optimizer": ADAMW}),
    "offload, one microbatch": ("offload", {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_gradient_choices_give_the_same_bits(name):
    choice, changes = RUNS[name]
    spec, last = spec_of(**changes), STEPS if name in ("fused", "offload") else 5
    kept, other = (steps_of(spec, each, last=last) for each in ("keep", choice))
    assert kept[0]._updates is None
    check_equal(kept, other)
    assert len({each["loss"] for each in other[1]}) == len(other[1])
    assert all(p.grad is None for p in other[0].model.parameters())


@pytest.mark.parametrize(("choice", "microbatches"), [("fused", 1), ("offload", 2)])
@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"recompute": "on"}])
def test_gradient_choices_give_the_same_bits_in_other_modes(choice, microbatches, options):
    spec = spec_of(microbatches=microbatches)
    kept, other = (steps_of(spec, each, last=3, **options) for each in ("keep", choice))
    check_equal(kept, other)


@pytest.mark.parametrize(
    ("before", "after", "microbatches"),
    [("keep", "fused", 1), ("fused", "offload", 1), ("offload", "keep", 2)],
)
def test_resume_with_another_gradient_choice_gives_the_same_bits(
    tmp_path, before, after, microbatches
):
    def spec(name):
        return spec_of(tmp_path / name, microbatches=microbatches)

    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    engine, measured = steps_of(spec("whole"), "keep")
    steps_of(spec("resumed"), before, last=7)
    resumed = steps_of(spec("resumed"), after, first=7)
    check_equal((engine, measured[7:]), resumed)
    folders = [tmp_path / name / f"torch.ckpt-{STEPS}" for name in ("whole", "resumed")]
    first, second = map(checkpoint_bits, folders)
    assert first.keys() == second.keys()
    assert len(first) == len(state(engine))
    assert [name for name in first if first[name] != second[name]] == []


def test_offload_frees_gradients_of_every_block_before_the_block_after_next(monkeypatch):
    alive = []
    take = gradients.BlockUpdates._take_gradients

    def count(updates, number):
        alive.append(sum(x.parameter.grad is not None for u in updates._units for x in u))
        expected = len(updates._units[number])
        assert alive[-1] == expected  # nothing of an earlier block
        take(updates, number)

    monkeypatch.setattr(gradients.BlockUpdates, "_take_gradients", count)
    steps_of(spec_of(microbatches=2), "offload", last=1)
    assert len(alive) == 2 * (4 + 1)  # the blocks of both stacks, and all else


@pytest.mark.parametrize(
    ("choice", "changes", "size", "said"),
    [
        ("fused", {"microbatches": 4}, 1, "has 4: set --gradients=offload, or run.batch_size = 1"),
        ("fused", {"clip_gradient_norm": 1.0}, 1, "before the norm of all .*=offload"),
        ("fused", {"clip_gradient_norm": 1.0}, 2, "before the norm of all .*=keep"),
        ("offload", {"microbatches": 4}, 2, "one process, and this run has 2: .*=keep"),
    ],
)
def test_gradient_choice_that_the_run_cannot_have_is_refused(choice, changes, size, said):
    given = {"microbatches": 1, "clip_gradient_norm": None} | changes
    with pytest.raises(UserError, match=said):
        memory.gradient_choices(
            choice,
            sequences=ROWS,
            microbatches=given["microbatches"],
            processes=size,
            clips=given["clip_gradient_norm"] is not None,
        )
    if size == 1:
        with pytest.raises(UserError, match=said):
            steps_of(spec_of(**changes), choice)


def test_automatic_gradient_choice_avoids_those_that_are_refused():
    def choices(microbatches, processes, clips):
        return memory.gradient_choices(
            "auto", sequences=8, microbatches=microbatches, processes=processes, clips=clips
        )

    assert choices(1, 1, False) == choices(1, 2, False) == ("keep", "fused")
    assert choices(1, 1, True) == choices(2, 1, False) == ("keep", "offload")
    assert choices(1, 2, True) == choices(2, 2, False) == ("keep",)


def test_automatic_gradient_choice_is_fused_if_keeping_does_not_fit(monkeypatch):
    # With few tokens, the peak is the end of the backward pass.
    spec = torch_runs.run("small", rows=1, lengths={"inputs": 8, "targets": 4})
    assert steps_of(spec, "auto", last=0)[0].switches.gradients == "keep"
    kept, _ = steps_of(spec, "keep", last=0, keep_gathered="off")
    free = kept.needed.total - 1
    monkeypatch.setattr(processes, "available_memory_bytes", lambda: free)
    engine, _ = steps_of(spec, "auto", last=0)
    assert (engine.switches.gradients, engine.switches.recompute) == ("fused", False)
    assert engine.needed.total <= free
    assert any("--gradients=fused" in line for line in engine._gradient_lines())


def test_offload_needs_enough_host_memory_before_weights_are_read(monkeypatch):
    for module in (gradients, torch_session):
        monkeypatch.setattr(module, "available_memory_bytes", lambda: 2**20)
    with pytest.raises(UserError, match=r"needs 0\.00 GiB of host memory, and 0\.00 GiB are free"):
        steps_of(spec_of(microbatches=2), "offload")


class _Runtime:
    """CUDA's runtime, which registers host memory or refuses to."""

    def __init__(self, status):
        self.status, self.calls = status, []

    def cudaHostRegister(self, *call):  # noqa: N802 (CUDA's name)
        self.calls.append(call)
        return self.status


@pytest.mark.parametrize("status", [0, 2])
def test_host_memory_is_registered_at_its_own_size_or_stays_ordinary(monkeypatch, status):
    runtime = _Runtime(status)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(gradients, "_clear_error", lambda device: None)
    engine, _ = steps_of(spec_of(microbatches=2), "offload", last=0)
    sums = gradients.HostSums(engine._updates._weights, torch.device("cuda"))
    assert sums.pinned == (status == 0)
    ((_, size, flags),) = runtime.calls
    assert (size, flags) == (engine.needed.host, 0)  # not rounded up to a power of two
