"""T5's own `t5_mesh_transformer` as published, up to the run: it reads gin files and flags.

    python stock_main.py --gin_file=/models/tiny/operative_config.gin --model_dir=/tmp/model

Only what keeps T5 0.9.4 from being imported at all is mended: two lines. Nothing of t0 is imported.
In place of the run the bindings that it would have are printed.
"""

import sys
import types

from tensorflow.python.framework import ops, tensor_conversion_registry

ops.register_tensor_conversion_function = (
    tensor_conversion_registry.register_tensor_conversion_function
)
sys.modules["t5.models.hf_model"] = types.SimpleNamespace(HfPyTorchModel=None)

import gin  # noqa: E402
import seqio  # noqa: E402
from absl import app  # noqa: E402
from t5.models import mesh_transformer_main as stock  # noqa: E402


def printed(**places):
    names = ("run.train_steps", "run.batch_size", "run.optimizer", "decoder/Unitransformer.d_model")
    for name in names:
        print(name, gin.query_parameter(name))
    assert places["model_dir"]
    assert not [name for name in sys.modules if name.split(".")[0] == "t0"]


# What `get_vocabulary` looks up.
seqio.TaskRegistry.add(
    "weather_train",
    source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"]),
    preprocessors=[],
    output_features={name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")},
)
stock.utils.run = printed
app.run(stock.main)
