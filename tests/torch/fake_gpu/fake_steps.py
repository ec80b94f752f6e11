"""Runs our PyTorch program on a fake GPU, and prints what it did as a line of JSON per case.

    python fake_steps.py LIBRARY '{"work": "train", "size": "xl", "processes": 8}' ...

Tensors have shapes, types and a device, but no values (`FakeTensorMode`), so T0-3B needs neither a
GPU nor memory. LIBRARY is `fake_cuda.cpp`, compiled; it must be loaded before PyTorch. PyTorch's
process group "fake" stands for the other processes.

Keys of a case: work ("train", "rank" or "decode"), size, processes, rows (per process), kernel,
recompute, keep (of gathered weights), gradients, clip (the norm), adapter (LoRA's rank), base (the
type of its frozen weights), microbatches, lengths, and fault: a mistake to inject ("item", "device"
or "leak").
"""

import contextlib
import ctypes
import dataclasses
import json
import sys
import traceback
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_runs  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from t0.config.model_spec import require_t5  # noqa: E402
from t0.config.specification import AdapterSpec  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.torch import evaluation, generator, gradients, model, sharding, torch_session  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from t0.training.loop import LoopOptions  # noqa: E402

GPU = torch.device("cuda", 0)
LENGTHS = {"inputs": 1024, "targets": 256}
# Operations whose results decide what the CPU does next, so the CPU waits for them.
WAITING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2")
aten = torch.ops.aten


class Meter(TorchDispatchMode):
    """Measures the operations of its block.

    Attributes:
      waits: for each time that the CPU waits for the GPU, the function of ours that causes it.
      collectives: name of a collective -> [calls, bytes of this process].
      now, peak: the bytes of all fake tensors on the GPU.
    """

    def __init__(self):
        super().__init__()
        self.waits, self.collectives = [], {}
        self.now = self.peak = 0
        self._sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Runs an operation, and measures it."""
        name = func.name().split("::")[-1].split(".")[0]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = any(x.device.type == "cuda" for x in tensors)
        result = func(*args, **(kwargs or {}))
        outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        copied_back = on_gpu and name in ("_to_copy", "copy_") and outputs[0].device.type == "cpu"
        copied_back = copied_back and not (name == "copy_" and args[2:] == (True,))  # not blocking
        by_mask = name in ("index", "index_put_") and any(
            x.dtype == torch.bool for x in tensors[1:]
        )
        if on_gpu and (name in WAITING or copied_back or by_mask):
            self.note_wait()
        if func.namespace == "c10d":
            counts = self.collectives.setdefault(name.strip("_"), [0, 0])
            counts[0] += 1
            counts[1] += max(x.nbytes for x in tensors)
        for each in outputs:
            # A DTensor is not counted, but its local tensor is.
            if type(each) is FakeTensor and each.device.type == "cuda":
                self.track(each.untyped_storage())
        return result

    def note_wait(self):
        """Records the function of ours that makes the CPU wait."""
        ours = [f for f in traceback.extract_stack() if "/t0/torch/" in f.filename]
        self.waits.append(f"{Path(ours[-1].filename).stem}.{ours[-1].name}" if ours else "?")

    def track(self, storage):
        """Counts the bytes of a storage until it is freed."""
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._change, key, None)
        self._change(key, storage.nbytes())

    def _change(self, key, size):
        self.now += (size or 0) - self._sizes.pop(key)
        if size is not None:
            self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def resized(self, storage):
        """Counts a tracked storage again after FSDP has changed its size."""
        if storage._cdata in self._sizes:
            self._change(storage._cdata, storage.nbytes())


class Stub:
    """A stream or an event that does nothing."""

    def __init__(self, *args, **kwargs):
        del args, kwargs

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def query(self):
        """Returns that all work is done."""
        return True


def attend(queries, keys, values, bias, kernel="auto"):
    """`model.attend`; without a GPU, PyTorch would not choose the efficient kernel itself."""
    if kernel != "efficient":
        return REAL_ATTEND(queries, keys, values, bias, "plain")
    bias = bias.expand(*queries.shape[:3], keys.shape[2])
    return aten._scaled_dot_product_efficient_attention(
        queries, keys, values, bias, True, scale=1.0
    )[0]


def build_narrow(spec):
    """Returns a T5 in bfloat16 without values. A fake model cannot change its type."""
    with unset_fake_temporarily(), torch.device("meta"):
        return REAL_T5(spec).to(torch.bfloat16)


REAL_ATTEND, REAL_T5 = model.attend, model.T5


def replace_cuda(meter):
    """Replaces what would ask the driver. `torch._dynamo` must have read torch.cuda before."""
    for name in ("Stream", "Event", "ExternalStream"):
        setattr(torch.cuda, name, Stub)
    torch.cuda.current_stream = lambda *args: Stub()
    torch.cuda.stream = lambda *args: contextlib.nullcontext()
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda *args: "fake"
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = torch.cuda.synchronize = lambda *args: None
    torch.cuda.mem_get_info = lambda *args: (2**40, 2**40)
    torch.Tensor.pin_memory = lambda self, *args: self
    gradients._pin = lambda tensor, device: True
    for module in (gradients, torch_session):
        module.available_memory_bytes = lambda: 2**40
    resize = torch.UntypedStorage.resize_

    def resize_and_count(storage, size):
        result = resize(storage, size)
        meter[0].resized(storage)
        return result

    def numbers(tensor):
        meter[0].note_wait()
        return np.ones(tuple(tensor.shape)).tolist()

    torch.UntypedStorage.resize_ = resize_and_count
    FakeTensor.tolist = numbers
    FakeTensor.__bool__ = lambda tensor: meter[0].note_wait() or True
    FakeTensor.numpy = lambda tensor, **kwargs: np.ones(tuple(tensor.shape), np.float32)
    World.max_over_processes = lambda world, number: number
    model.attend = attend


def inject(fault):
    """Injects a mistake into the model."""
    if fault == "item":
        norm = model.Norm.forward
        model.Norm.forward = lambda self, x: norm(self, x * (1.0 if x.sum().item() else 1.0))
    if fault == "device":
        model._future_positions = lambda length, device: torch.ones(length, length).triu(1) > 0
    if fault == "leak":  # as if the gradients were kept until the end of the step
        take, kept = gradients.BlockUpdates._take_gradients, []

        def take_and_keep(updates, number):
            kept.extend(weight.gradient() for weight in updates._units[number])
            take(updates, number)

        gradients.BlockUpdates._take_gradients = take_and_keep


def train(case, world):
    """Takes two training steps; returns the meter's view of the second, and the planned memory."""
    rows = case.rows * world.size
    parts = case.microbatches * world.size
    spec = torch_runs.run(case.size, rows=rows, lengths=case.lengths, microbatches=parts)
    adapter = None
    if case.adapter:
        adapter = AdapterSpec("lora", rank=case.adapter, base=case.base)
    spec = dataclasses.replace(spec, clip_gradient_norm=case.clip, adapter=adapter)
    switches = {"recompute": case.recompute, "keep_gathered": case.keep}
    switches["gradients"] = case.gradients
    compute = torch_session.ComputeOptions(torch.bfloat16, **switches, replays=False)
    torch_session.choose_kernel = lambda *args: (case.kernel, [])
    engine = torch_session.TorchEngine(spec, LoopOptions(train_steps=9), None, world, compute)
    batch = {name: np.ones((rows, length), np.int32) for name, length in case.lengths.items()}
    engine.take(batch)
    yield
    alive = count_gradients(engine._updates)
    engine.take(batch)
    planned = dataclasses.asdict(engine.needed) | {"total": engine.needed.total}
    yield planned | {"most_alive": max(alive, default=0)}


def count_gradients(updates):
    """Returns a list that gets the bytes of all float32 gradients each time some are used."""
    alive = []
    if updates:
        take = updates._take_gradients

        def count_and_take(number):
            grads = [w.gradient() for unit in updates._units for w in unit]
            alive.append(sum(g.numel() * 4 for g in grads if g is not None))
            take(number)

        updates._take_gradients = count_and_take
    return alive


def rank(case, world):
    """Ranks a batch of 8 choices for each input, twice."""
    spec = require_t5(torch_runs.run(case.size, rows=1, lengths=LENGTHS).model)
    if world.size == 1:
        sharding.T5 = build_narrow
    scorer = evaluation.ShardedScorer(spec, world, torch.bfloat16)
    inputs = np.ones((case.rows * world.size, 256), np.int32)
    targets = np.ones((len(inputs), 8, 16), np.int32)
    scorer.log_likelihoods(inputs, targets)
    yield
    scorer.log_likelihoods(inputs, targets)
    yield {}


def decode(case, world):
    """Decodes 16 tokens for each input."""
    spec = require_t5(torch_runs.run(case.size, rows=1, lengths=LENGTHS).model)
    model = generator.TorchGenerator(spec, world.device, torch.bfloat16, DecodingMethod())
    sharding.T5, generator.checkpointing.load = build_narrow, lambda *args: 0
    model.restore("")
    yield
    draws, limits = np.zeros((case.rows, 16), np.float32), np.full(case.rows, 16)
    model.generate(np.ones((case.rows, 256), np.int64), limits, draws)
    yield {}


def measure(case, meter):
    """Returns what a case did, as a dict."""
    store = {"rank": 0, "world_size": case.processes, "store": FakeStore()}
    dist.init_process_group("fake", **store)
    mesh = dist.device_mesh.init_device_mesh("cuda", (case.processes,), mesh_dim_names=("rows",))
    sharding.init_device_mesh = lambda *args, **kwargs: mesh
    meter[0] = Meter()
    with FakeTensorMode(allow_non_fake_inputs=True), meter[0]:
        steps = globals()[case.work](case, World(0, case.processes, GPU))
        next(steps)
        meter[0].waits.clear()
        meter[0].collectives.clear()
        planned = next(steps)
        waits, found = Counter(meter[0].waits), meter[0]
        return {
            "collectives": found.collectives, "peak": found.peak, "waits": waits, "planned": planned
        }  # fmt: skip


def main():
    """Measures each case of the command line."""
    meter = [Meter()]
    replace_cuda(meter)
    defaults = {"processes": 1, "rows": 2, "kernel": "plain", "recompute": "off", "fault": ""}
    defaults |= {"keep": "auto", "microbatches": 1, "lengths": LENGTHS}
    defaults |= {"gradients": "keep", "clip": None, "adapter": 0, "base": "full"}
    for text in sys.argv[2:]:
        case = SimpleNamespace(**defaults | json.loads(text))
        inject(case.fault)
        try:
            answer = measure(case, meter)
        except RuntimeError as error:  # a tensor is on the wrong device, or its value is read
            answer = {"error": str(error).splitlines()[0]}
        finally:
            dist.destroy_process_group()
            sharding.T5 = REAL_T5
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
