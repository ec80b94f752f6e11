"""Adapters on a quantized base: PEFT's losses on the same base, memory, commands and bad input."""

import importlib.util
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints.tiny_checkpoints import model_shape, weights, write_mtf

torch = pytest.importorskip("torch")
bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="needs bitsandbytes: .ci/run transformers"
)

from t0.checkpoints import convert  # noqa: E402
from t0.checkpoints.quantized_weights import round_weight  # noqa: E402
from t0.config.model_spec import Dropout, T5Spec  # noqa: E402
from t0.config.specification import AdapterSpec  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.torch import adapters, checkpointing, processes, quantization, sharding  # noqa: E402
from t0.torch.model import move_to_device  # noqa: E402

# The kernel of bitsandbytes for CPUs is right if rows are multiples of 64, as in all public T5s.
SHAPE = model_shape(d_model=64, d_ff=128, inner=64)
LORA = {"method": "lora", "rank": 4, "alpha": 8.0, "projections": ("q", "o", "wi_0")}
STEPS, RATE = 4, 0.01
IDS = np.random.default_rng(5).integers(2, 100, (2, 12))


@pytest.fixture
def base(tmp_path):
    convert(write_mtf(tmp_path / "mtf", weights(SHAPE)), tmp_path / "hf", to="hf")
    return tmp_path / "hf"


class Unnamed(torch.nn.Module):
    """Hides the type of a quantized weight, to which transformers' T5 would cast activations."""

    weight = None

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        """Calls the layer."""
        return self.inner(x)


def quantize(model, kind, dtype):
    """Replaces the linear layers in the blocks of transformers' T5 by those of bitsandbytes."""
    for path, linear in list(model.named_modules()):
        if not isinstance(linear, torch.nn.Linear) or ".block." not in path:
            continue
        sizes, values = (linear.in_features, linear.out_features), linear.weight.data
        if kind == "nf4":
            layer = bitsandbytes.nn.Linear4bit(
                *sizes, bias=False, compute_dtype=dtype, quant_type="nf4", compress_statistics=False
            )
            layer.weight = bitsandbytes.nn.Params4bit(
                values, requires_grad=False, quant_type="nf4", compress_statistics=False
            )
        else:
            layer = bitsandbytes.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False)
            layer.weight = bitsandbytes.nn.Int8Params(values, requires_grad=False)
        layer = layer.to("cpu")  # quantizes the weight
        model.set_submodule(path, Unnamed(layer) if path.endswith(".wo") else layer)


def their_losses(folder, adapter, kind, dtype):
    """The losses of PEFT's LoRA on transformers' T5 with a quantized base, step by step."""
    import peft
    import transformers

    model = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    quantize(model, kind, dtype)
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(dtype)
    model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    ids = torch.from_numpy(IDS)
    shifted = torch.nn.functional.pad(ids, (1, 0))[:, :-1]

    def loss():
        logits = model(input_ids=ids, decoder_input_ids=shifted).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    trained = [x for x in model.parameters() if x.requires_grad]
    return train(loss, trained)


def train(loss, parameters):
    """Takes steps of gradient descent; returns the losses before each of them."""
    optimizer, values = torch.optim.SGD(parameters, RATE), []
    for _ in range(STEPS):
        value = loss()
        values.append(value.item())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return values


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 1e-2, marks=pytest.mark.slow)],
    ids=["float32", "bfloat16"],
)
def test_losses_on_a_quantized_base_equal_those_of_peft(tmp_path, base, kind, dtype, tolerance):
    pytest.importorskip("peft")
    spec = T5Spec(SHAPE, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
    found = {}
    for each in (kind, "full"):
        adapter, hashes = AdapterSpec(**LORA, base=each), {}
        with processes.join_processes("cpu") as joined:
            model = sharding.sharded(spec, joined, activations=dtype, adapter=adapter)
            sharding.trained_weights(model, None)
            checkpointing.load(model, None, str(base), joined, hashes=hashes)
            checkpointing.fill_adapter(model, 0, joined)
            folder = tmp_path / each
            folder.mkdir()
            recorded = adapters.BaseModel(str(base), hashes, each)
            adapters.write(folder, 0, model=model, spec=adapter, base=recorded, writes=True)
            batch = move_to_device({"inputs": IDS, "targets": IDS}, joined.device)
            trained = adapters.adapter_parameters(model).values()
            found[each] = train(lambda: model(batch)[0] / IDS.size, trained)  # noqa: B023
    expected = their_losses(base, tmp_path / kind, kind, dtype)
    assert found[kind] == pytest.approx(expected, rel=tolerance)
    assert expected[-1] < expected[0]
    if tolerance < 1e-3:  # another base has other losses
        assert found["full"][0] != pytest.approx(expected[0], rel=1e-3)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("shape", [(48, 64), (48, 32), (4, 33)])
def test_rounded_weights_are_those_of_bitsandbytes(kind, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight[0, :4], weight[-1] = 0.0, weight[-1] * 1e-3
    layer = quantization.FrozenLinear(shape[1], shape[0], kind)
    layer.fill(weight)
    found = round_weight(weight.numpy().T, kind).T
    expected = layer(torch.eye(shape[1])).T.numpy()
    assert found == pytest.approx(expected, rel=1e-6, abs=0)
    if kind == "nf4" and shape[1] % 64 == 0:  # bitsandbytes' kernel for CPUs is wrong for others
        values, state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")
        theirs = bitsandbytes.functional.dequantize_4bit(values, state).numpy()
        assert found == pytest.approx(theirs, rel=1e-6, abs=0)
    assert not np.allclose(found, weight.numpy(), rtol=1e-3)


def scores(world, output, *words):
    """The notes of `t0 eval`, and the log-likelihoods of all choices."""
    done = world.command(
        *("eval", *words, "--engine=torch", "--device=cpu", f"--output={output}", "--limit=4"),
        *("--tasks=weather_.*_score_eval", "--lengths=inputs=64,targets=16"),
        program="t0",
    )
    assert done.returncode == 0, done.stderr
    lines = [line for path in output.rglob("*.jsonl") for line in path.read_text().splitlines()]
    choices = [choice for line in lines for choice in json.loads(line).get("choices", ())]
    return done.stderr, [choice["log_likelihood"] for choice in choices]


def test_adapter_on_a_quantized_base_resumes_and_is_evaluated_as_trained(world, trained):
    adapter, folders = {"method": "lora", "rank": 4, "base": "nf4"}, []
    for name, steps in (("whole", (4,)), ("halves", (2, 4))):
        folder = world.folder / f"quantized {name}"
        changes = {"adapter": adapter, "init_checkpoint": str(trained["hf"]), "schedule": 0.01}
        for last in steps:
            done = world.torch(world.specified(folder, last, **changes))
            assert done.returncode == 0, done.stderr
        folders.append(folder / "torch.ckpt-4")
    assert "trained weights, on projections in nf4" in done.stdout
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    config = json.loads((folders[0] / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and "t0_base" not in config
    words = (trained["hf"], f"--adapter={folders[0]}")
    said, as_trained = scores(world, world.folder / "as trained", *words)
    assert "the base is read in nf4; the adapter was trained on nf4" in said
    said, in_full = scores(world, world.folder / "in full", *words, "--base=full")
    assert "the base is read in full; the adapter was trained on nf4" in said
    _, alone = scores(world, world.folder / "alone", folders[0])
    assert as_trained and as_trained == pytest.approx(alone, abs=1e-6)
    assert as_trained != pytest.approx(in_full, abs=1e-3)
    done = world.command("eval", trained["hf"], "--base=nf4", program="t0")
    assert done.returncode == 2 and "--base=nf4 needs --adapter" in done.stderr


def test_base_without_an_adapter_or_the_package_is_refused(world, trained, monkeypatch):
    done = world.command(*world.flags(world.folder / "no adapter", 1, "--base=nf4"))
    assert done.returncode == 2
    assert "--base=nf4 is for the frozen weights of an adapter" in done.stderr
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--base=int8 needs bitsandbytes.*bin/setup --with quant"):
        quantization.check_installed("int8")
    quantization.check_installed("full")
