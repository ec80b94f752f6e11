"""When two cores have the same value."""

import ml_dtypes
import numpy as np
import pytest

from t0.rehearsal.virtual_pod import replicas_equal


@pytest.mark.parametrize(
    ("dtype", "change", "equal"),
    [
        (np.float32, 0.0, True),
        (np.float32, 1e-6, True),
        (np.float32, 1e-3, False),
        (np.float32, np.nan, False),
        (ml_dtypes.bfloat16, 2**-7, True),
        (ml_dtypes.bfloat16, 0.1, False),
        (np.int32, 1, False),
    ],
)
def test_virtual_pod_replicas_may_differ_by_rounding(dtype, change, equal):
    first = np.array([3, 1, -1], dtype)
    second = first + np.array([0, change, 0]).astype(dtype)
    assert replicas_equal(first, second) == equal
