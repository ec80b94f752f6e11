"""Adapters on a quantized base: PEFT's losses on the same base, memory, commands and bad input."""

import numpy as np
import pytest

from tests.checkpoints.checkpoint_adapters_test import IDS, base  # noqa: F401 (a fixture)
from tests.checkpoints.tiny_checkpoints import V11

torch = pytest.importorskip("torch")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: .ci/run transformers")

from t0.config.model_spec import Dropout, T5Spec  # noqa: E402
from t0.config.specification import AdapterSpec  # noqa: E402
from t0.torch import adapters, checkpointing, processes, sharding  # noqa: E402
from t0.torch.model import move_to_device  # noqa: E402

LORA = {"method": "lora", "rank": 4, "alpha": 8.0, "projections": ("q", "o", "wi_0")}
STEPS, RATE = 6, 0.02


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
    """Takes steps of AdamW; returns the losses before each of them."""
    optimizer, values = torch.optim.AdamW(parameters, RATE, weight_decay=0.0), []
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
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"]
)
def test_losses_on_a_quantized_base_equal_those_of_peft(tmp_path, base, kind, dtype, tolerance):
    pytest.importorskip("peft")
    spec = T5Spec(V11, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
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
    print(found, expected)
    assert found[kind] == pytest.approx(expected, rel=tolerance)
    assert expected[-1] < 0.9 * expected[0]
    if tolerance < 1e-3:  # another base has other losses
        assert found["full"][0] != pytest.approx(expected[0], rel=1e-3)
