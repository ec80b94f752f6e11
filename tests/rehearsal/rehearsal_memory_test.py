"""A rehearsal that does not fit is refused before anything is built, with the cores that fit."""

import planning
import pytest

from t0.errors import UserError
from t0.mesh.costs import model_shape
from t0.mesh.lowering import build_model
from t0.rehearsal import rehearse

GIB = 2**30


def read(name, *params, files=("models/t5.1.1.tiny.gin",)):
    return planning.read(*planning.on_slice(name, 2), *params, files=files, vocabulary_size=32100)


def needed(run):
    return rehearse.needed_bytes(run, model_shape(build_model(run)))


def test_rehearsal_memory_fits_small_models_and_not_large_ones():
    small = needed(read("v3-8", *planning.TINY))
    assert GIB < small < 4 * GIB
    assert needed(read("v3-32", *planning.TINY)) > small
    assert needed(read("v3-8", files=("models/t5.1.1.xl.gin",))) > 100 * GIB


def test_rehearsal_memory_error_reports_how_many_cores_fit():
    run = read("v3-32", *planning.TINY)
    model = build_model(run)
    rehearse.check_memory(run, model, lambda: needed(run))
    free = needed(read("v3-8", *planning.TINY))
    with pytest.raises(UserError, match=r"the 32 virtual cores of v3-32 need about \d") as refused:
        rehearse.check_memory(run, model, lambda: free)
    assert ": 8 cores of this model fit" in str(refused.value)
    with pytest.raises(UserError, match=": 0 cores of this model fit"):
        rehearse.check_memory(run, model, lambda: GIB // 2)
