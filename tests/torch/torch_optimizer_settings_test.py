"""The PyTorch engine reads every setting of the optimizers that gin can bind."""

import dataclasses
import inspect

import pytest

optimizers = pytest.importorskip("t0.torch.optimizers", reason="needs PyTorch")


@pytest.mark.parametrize("selector", optimizers._KINDS)
def test_optimizer_settings_of_gin_are_fields_of_the_torch_parameters(selector):
    from t0.compat import gin_config
    from t0.run import configure

    configure.register()
    settings = inspect.signature(gin_config._REGISTRY[selector].wrapped).parameters
    _, kind = optimizers._KINDS[selector]
    for name in settings.keys() - {"learning_rate"} - {x.name for x in dataclasses.fields(kind)}:
        pytest.fail(f"add {name} to {kind.__name__} in t0/torch/optimizers.py, and to its steps")
    unknown = {field.name for field in dataclasses.fields(kind)} - settings.keys()
    assert not unknown, f"remove {unknown} from {kind.__name__}: gin has no such setting"
