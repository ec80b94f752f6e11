"""Packed products are the products of the weights as they are."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from t0.torch import products  # noqa: E402

# Type -> how near a product is.
TYPES = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(params=["packed", "as they are"])
def packing(request, monkeypatch):
    if request.param == "as they are":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    elif not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    return request.param


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [(1,), (7,), (32, 1), (3, 5)])
def test_products_are_those_of_the_weights(packing, dtype, rows):
    torch.manual_seed(0)
    weight, x = torch.randn(40, 24).to(dtype), torch.randn(*rows, 24).to(dtype)
    with torch.inference_mode():
        found = products.product(weight)(x)
    expected = functional.linear(x.double(), weight.double())
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    assert torch.allclose(found.double(), expected, rtol=0, atol=TYPES[dtype])


def test_weights_are_packed_once(packing):
    weight, x = torch.eye(3), torch.ones(1, 3)
    to_rows = products.product(weight)
    weight.zero_()
    assert bool(to_rows(x).any()) == (packing == "packed")


def test_layers_with_a_bias_and_others_stay(packing):
    inner = nn.Sequential(nn.Linear(4, 6, bias=False), nn.GELU(), nn.Linear(6, 2))
    model = nn.Sequential(inner, nn.LayerNorm(2))
    x = torch.randn(5, 4)
    with torch.inference_mode():
        expected = model(x)
        products.pack_products(model)
        assert torch.allclose(model(x), expected, atol=1e-6)
    replaced = not isinstance(inner[0], nn.Linear)
    assert replaced == (packing == "packed")
    assert isinstance(inner[2], nn.Linear)
