"""The program of the PyTorch engine on a GPU, run on a fake one.

`fake_gpu/fake_steps.py` runs in processes of its own, because it replaces parts of PyTorch.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parent / "fake_gpu"
pytestmark = [
    pytest.mark.fake_gpu,
    pytest.mark.skipif(not shutil.which("g++"), reason="builds a library with g++"),
]
# The waits for logged numbers at the end of a step: the sums of squares, and the loss.
LOGGED = {"optimizers.step": 1, "torch_session._values": 1}
# Size -> FSDP units that are gathered: the blocks, and the rest of the model.
UNITS = {"small": 17, "xl": 49, "xxl": 49}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library that gives PyTorch's CPU build a fake CUDA device."""
    root, path = Path(torch.__file__).parent, tmp_path_factory.mktemp("fake_gpu") / "fake_cuda.so"
    includes = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    links = [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lc10", "-ltorch_cpu"]
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", *includes]
    command += [str(FOLDER / "fake_cuda.cpp"), *links, "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def run(library, *cases):
    command = [sys.executable, FOLDER / "fake_steps.py", library, *map(json.dumps, cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("size", "kernel", "worlds"),
    [
        ("small", "plain", (1, 8)),
        ("small", "efficient", (8,)),
        pytest.param("small", "efficient", (1,), marks=pytest.mark.exhaustive),
        pytest.param("xl", "efficient", (8,), marks=pytest.mark.exhaustive),
        pytest.param("xl", "plain", (1, 64), marks=pytest.mark.exhaustive),
        pytest.param("xxl", "efficient", (1, 8, 64), marks=pytest.mark.exhaustive),
    ],
)
def test_fake_gpu_training_step_waits_only_for_logs_and_stays_within_planned_memory(
    library, size, kernel, worlds
):
    cases = ({"work": "train", "size": size, "kernel": kernel, "processes": n} for n in worlds)
    for processes, step in zip(worlds, run(library, *cases), strict=True):
        assert step["waits"] == LOGGED
        check_memory(step)
        check_collectives(step, size, processes)


def check_memory(step):
    """Checks that the peak is within a tenth of the plan."""
    assert step["peak"] == pytest.approx(step["planned"]["total"], rel=0.1)


def check_collectives(step, size, processes, *, gathers=1):
    """Checks the numbers and bytes of a step's collectives against the planned weights."""
    collectives, weights = step["collectives"], step["planned"]["weights"]
    if processes == 1:
        return
    calls, received = collectives.pop("allgather_base")
    # Weights are gathered in bfloat16. Blocks are gathered twice if they are not kept.
    assert calls == 1 + gathers * (UNITS[size] - 1)
    assert received >= weights * processes / 2 * 0.999
    calls, sent = collectives.pop("reduce_scatter_base")
    assert calls == UNITS[size]
    assert sent == pytest.approx(weights * processes, rel=0.01)  # gradients are summed in float32
    # Adafactor's sums of all weights, the sums of updates, and the logged sums.
    assert collectives.keys() == {"allreduce"}
    assert collectives["allreduce"][0] == 3


@pytest.mark.parametrize(
    "case",
    [
        {"recompute": "on", "rows": 16},
        {"microbatches": 2, "rows": 4, "processes": 8, "kernel": "efficient"},
        # With few tokens, the peak is the end of the backward pass.
        {"rows": 1, "lengths": {"inputs": 64, "targets": 32}},
    ],
    ids=["recomputation", "microbatches", "few tokens"],
)
def test_fake_gpu_options_stay_within_planned_memory(library, case):
    (step,) = run(library, {"work": "train", "size": "small", **case})
    assert step["waits"] == LOGGED
    check_memory(step)


FUSED, OFFLOAD = {"gradients": "fused"}, {"gradients": "offload", "microbatches": 2}
FEW_TOKENS = {"rows": 2, "lengths": {"inputs": 64, "targets": 32}}
GIB = 2**30


@pytest.mark.parametrize(
    "case",
    [
        FUSED | FEW_TOKENS,
        OFFLOAD | FEW_TOKENS | {"clip": 1.0},
        pytest.param(FUSED | {"recompute": "on", "rows": 16}, marks=pytest.mark.exhaustive),
        pytest.param(FUSED | {"processes": 2}, marks=pytest.mark.slow),
        pytest.param(OFFLOAD, marks=pytest.mark.exhaustive),
        pytest.param(OFFLOAD | {"recompute": "on", "rows": 16}, marks=pytest.mark.exhaustive),
    ],
)
def test_fake_gpu_gradient_choices_stay_within_planned_memory(library, case):
    (step,) = run(library, {"work": "train", "size": "small", "kernel": "efficient", **case})
    assert step["waits"] == {"gradients.finish": 1, "torch_session._values": 1}
    check_memory(step)


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [FUSED, OFFLOAD], ids=["fused", "offload"])
def test_fake_gpu_memory_of_an_adapter_is_at_most_planned(library, gradients):
    # The plan counts gathered weights, which one process does not copy.
    case = {"work": "train", "size": "small", "kernel": "efficient", "adapter": 8}
    (step,) = run(library, case | gradients)
    assert 0.85 < step["peak"] / step["planned"]["total"] < 1


@pytest.mark.parametrize(
    ("size", "case", "limit"),
    [
        ("small", {"base": "nf4"}, 1),
        pytest.param("small", {"base": "int8", "processes": 2}, 1, marks=pytest.mark.slow),
        pytest.param("xxl", {"base": "nf4", "recompute": "on"}, 10.8, marks=pytest.mark.slow),
        pytest.param("xxl", {"base": "nf4", "rows": 2}, 21.6, marks=pytest.mark.exhaustive),
        pytest.param("xxl", {"base": "int8", "rows": 2}, 24, marks=pytest.mark.exhaustive),
    ],
)
def test_fake_gpu_memory_of_an_adapter_on_a_quantized_base_is_as_planned(
    library, size, case, limit
):
    # 10.8 GiB are usable on a 12 GB card, and 21.6 GiB on a 24 GB card.
    pytest.importorskip("bitsandbytes")
    defaults = {"work": "train", "size": size, "kernel": "efficient", "adapter": 8, "rows": 1}
    (step,) = run(library, defaults | case)
    # The plan counts the inputs of all projections, but frozen ones need no inputs.
    assert 0.8 < step["peak"] / step["planned"]["total"] < 1.02
    assert step["peak"] < limit * GIB


@pytest.mark.parametrize(
    ("size", "gradients", "limit"),
    [
        pytest.param("xl", FUSED, 14.4, marks=pytest.mark.slow),
        pytest.param("xl", OFFLOAD, 14.4, marks=pytest.mark.exhaustive),
        pytest.param("xxl", FUSED, 72, marks=pytest.mark.exhaustive),
        pytest.param("xxl", OFFLOAD, 72, marks=pytest.mark.exhaustive),
    ],
)
def test_fake_gpu_t0_fits_a_card_without_all_gradients(library, size, gradients, limit):
    # 14.4 GiB are usable on a 16 GB card, and 72 GiB on an 80 GB GPU.
    case = {"work": "train", "size": size, "kernel": "efficient", "keep": "off", "recompute": "on"}
    (step,) = run(library, case | gradients)
    check_memory(step)
    assert step["peak"] < limit * GIB
    # The embeddings and the output matrix are larger than two blocks.
    assert step["planned"]["most_alive"] < 0.11 * step["planned"]["weights"]


def test_fake_gpu_finds_gradients_that_are_not_freed(library):
    case = {"work": "train", "size": "small", "kernel": "efficient", **FUSED, **FEW_TOKENS}
    freed, leaked = run(library, case, case | {"fault": "leak"})
    check_memory(freed)
    assert leaked["peak"] > 1.2 * freed["peak"]


def test_fake_gpu_blocks_are_gathered_twice_if_they_are_not_kept(library):
    case = {"work": "train", "size": "small", "keep": "off", "processes": 8}
    (step,) = run(library, case)
    check_memory(step)
    check_collectives(step, "small", 8, gathers=2)


def test_fake_gpu_ranking_waits_once_for_each_batch(library):
    cases = ({"work": "rank", "size": "small", "processes": n} for n in (1, 8))
    for batch in run(library, *cases):
        assert batch["waits"] == {"evaluation.log_likelihoods": 1}


def test_fake_gpu_decoding_waits_once_for_each_token(library):
    # After each token, the CPU asks whether all examples have ended; then it reads the result.
    (batch,) = run(library, {"work": "decode", "size": "small"})
    assert batch["waits"]["generator.generate"] <= 16 + 2
    assert batch["waits"].keys() == {"generator.generate"}


@pytest.mark.parametrize(
    ("fault", "said"), [("item", "_local_scalar_dense"), ("device", "same device")]
)
def test_fake_gpu_finds_injected_mistakes(library, fault, said):
    (step,) = run(library, {"work": "train", "size": "small", "fault": fault})
    assert said in step["error"]
