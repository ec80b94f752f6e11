"""The likeliest tokens are those of float32 logits, whatever a product rounds."""

import pytest

torch = pytest.importorskip("torch")

from t0.torch import logits as of_logits  # noqa: E402
from t0.torch import products  # noqa: E402
from t0.torch.logits import Logits  # noqa: E402

needs_bfloat16 = pytest.mark.skipif(
    not products.packs(torch.zeros(1, 1, dtype=torch.bfloat16)),
    reason="this processor does not multiply bfloat16 numbers",
)
# Rows in parts of 128, too few for that, and a number that no part divides.
VOCABULARIES = [8192, 256, 1001]


def drawn(vocabulary, dtype, *, rows=9, width=48, seed=0):
    torch.manual_seed(seed)
    return torch.randn(vocabulary, width).to(dtype), torch.randn(rows, width).to(dtype)


def expected(table, hidden, count, scale=1.0):
    whole = hidden.double() * scale @ table.double().T
    values, places = whole.topk(count)
    return values, places, values - whole.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("scale", [1.0, 0.07])
def test_the_likeliest_are_those_of_all_logits(vocabulary, dtype, count, scale):
    table, hidden = drawn(vocabulary, dtype)
    with torch.inference_mode():
        nats, tokens = Logits(table, scale, count).likeliest(hidden)
        whole = Logits(table, scale)(hidden)
    values, places, scores = expected(table, hidden, count, scale)
    assert torch.equal(tokens, places)
    assert torch.allclose((nats - nats[:, :1]).double(), values - values[:, :1], atol=1e-4)
    assert torch.allclose(nats.double(), scores, atol=2e-3)
    assert (whole.dtype, whole.shape) == (torch.float32, (len(hidden), vocabulary))
    assert torch.allclose(whole.gather(-1, tokens).double(), values, atol=1e-4)


@needs_bfloat16
def test_only_rows_that_rounding_may_have_changed_are_computed_whole(monkeypatch):
    table, hidden = drawn(8192, torch.bfloat16)
    # A hundred tokens are alike but for less than rounding shows.
    table[1000:1100] = hidden[3]
    table[1000:1100, 0] += torch.linspace(0, 1, 100).to(torch.bfloat16)
    head, asked = Logits(table, count=2), []
    compute = Logits.__call__
    monkeypatch.setattr(Logits, "__call__", lambda *a: asked.append(len(a[1])) or compute(*a))
    with torch.inference_mode():
        nats, tokens = head.likeliest(hidden)
    values, _, scores = expected(table, hidden, 2)
    assert asked == [1]
    assert torch.allclose((nats - nats[:, :1]).double(), values - values[:, :1], atol=1e-4)
    assert torch.allclose((hidden.double() @ table.double().T).gather(-1, tokens), values)
    assert torch.allclose(nats.double(), scores, atol=2e-3)


@needs_bfloat16
def test_a_rounded_logit_does_not_displace_a_larger_one():
    # All but two logits are far below. One of the two is rounded up above the other.
    table = torch.zeros(1024, 2, dtype=torch.bfloat16)
    table[7] = torch.tensor([1.0, 2.0**-8 + 2.0**-10])
    table[9] = torch.tensor([1.0, 2.0**-8 + 2.0**-9])
    hidden = torch.ones(1, 2, dtype=torch.bfloat16)
    with torch.inference_mode():
        head = Logits(table, count=1)
        assert head._rounded(hidden)[0, [7, 9]].unique().numel() == 1
        assert head.likeliest(hidden)[1].tolist() == [[9]]


def test_sums_hold_where_exponentials_are_zero():
    table = torch.full((256, 1), -300.0)
    table[3] = 100.0
    with torch.inference_mode():
        nats, tokens = Logits(table, count=1).likeliest(torch.ones(1, 1))
    assert (nats.tolist(), tokens.tolist()) == ([[0.0]], [[3]])


@needs_bfloat16
def test_many_beams_ask_for_packed_float32_logits():
    table = torch.zeros(1024, 2, dtype=torch.bfloat16)
    assert Logits(table, count=of_logits._CANDIDATES)._exact is not None
