"""The axes of a sweep."""

import pytest

from t0.errors import UserError
from t0.mesh.sweep import parse_axes


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["tpuu=v3-8"], "Did you mean 'tpu'"),
        (["tpu"], "wanted tpu=VALUE"),
        (["model_parallelism=two"], "'two' is not a whole number"),
        (["tokens_per_batch=1", "sequences_per_batch=1"], "one of"),
    ],
)
def test_sweep_axes_that_cannot_be_read_are_refused(words, part):
    with pytest.raises(UserError, match=part):
        parse_axes(words)
