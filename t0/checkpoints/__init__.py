"""Reads checkpoints of several formats, checks that they fit a model, and converts between formats.

    from t0.checkpoints import as_mesh_checkpoint, convert, open_source

    convert("/models/t0_3b", "/models/t0_3b_mtf", to="mtf")       # Hugging Face to Mesh TensorFlow
    prefix = as_mesh_checkpoint("/models/t5x/checkpoint_1000", "/tmp/work")
    source = open_source("/models/t0_3b")
    source.model.d_model, source.facts.step, source.load("shared/embedding").dtype

| file | contents |
|---|---|
| `names` | the table of tensor names in Mesh TensorFlow, Hugging Face and T5X |
| `shape` | a model's dimensions, inferred from its tensors, and the expected shape of each tensor |
| `formats` | the base classes of all formats: `CheckpointSource` and `CheckpointTarget` |
| `mtf` | Mesh TensorFlow's model directories |
| `bundle` | TensorFlow's checkpoint files |
| `operative_config` | the gin file next to a checkpoint: reads, writes and checks it |
| `hugging_face` | Hugging Face's folders and their config.json |
| `weight_files` | safetensors, and PyTorch's pickles if they can be read safely |
| `adapter_folders` | adapters in PEFT's folders, merged into a base model |
| `other_folders` | folders that only look like checkpoints, such as outputs of a Trainer |
| `tokenizer` | a checkpoint's SentencePiece model or `tokenizer.json` |
| `t5x` | T5X's checkpoints: a msgpack index and zarr arrays |
| `torch_shards` | the PyTorch engine's checkpoints |
| `conversion` | `FORMATS`, `open_source`, `convert`, `as_mesh_checkpoint` |
| `compare` | compares the tensors and settings of two checkpoints |
| `prepared_checkpoint` | a checkpoint, or a model on the Hugging Face hub, prepared for a run |
| `checkpoint_files` | the steps, variables and vocabulary size of a model directory |

TensorFlow is never imported.
"""

from t0.checkpoints.conversion import (
    FORMATS,
    ConversionReport,
    as_mesh_checkpoint,
    convert,
    open_source,
    recognise,
)
from t0.checkpoints.formats import CheckpointSource, ConversionOptions

__all__ = [
    "FORMATS",
    "ConversionOptions",
    "ConversionReport",
    "CheckpointSource",
    "as_mesh_checkpoint",
    "convert",
    "open_source",
    "recognise",
]
