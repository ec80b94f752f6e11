"""Defines the protocol buffers in the files of TensorFlow's saver, without importing TensorFlow.

    BundleEntry.FromString(data).shape.dim[0].size
    text_format.Merge(text, CheckpointState()).model_checkpoint_path

`BundleHeader` and `BundleEntry` are the values in a checkpoint's index. `CheckpointState` is the
text file `checkpoint` of a model directory. Fields that we never read or write are left out. Sizes
and offsets are defined as unsigned, so that a damaged value cannot be negative.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_UINT, _FIXED32, _DOUBLE = _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED32, _FIELD.TYPE_DOUBLE
_BYTES, _TEXT = _FIELD.TYPE_BYTES, _FIELD.TYPE_STRING

# Message -> its fields: name, number, optional or repeated, and type (or the name of a message).
_MESSAGES = {
    "Dim": [("size", 1, _ONE, _UINT)],
    "Shape": [("dim", 2, _MANY, "Dim")],
    "Version": [("producer", 1, _ONE, _UINT)],
    "BundleHeader": [("num_shards", 1, _ONE, _UINT), ("version", 3, _ONE, "Version")],
    "BundleEntry": [
        ("dtype", 1, _ONE, _UINT),
        ("shape", 2, _ONE, "Shape"),
        ("shard_id", 3, _ONE, _UINT),
        ("offset", 4, _ONE, _UINT),
        ("size", 5, _ONE, _UINT),
        ("crc32c", 6, _ONE, _FIXED32),
        ("slices", 7, _MANY, _BYTES),
    ],
    "CheckpointState": [
        ("model_checkpoint_path", 1, _ONE, _TEXT),
        ("all_model_checkpoint_paths", 2, _MANY, _TEXT),
        ("all_model_checkpoint_timestamps", 3, _MANY, _DOUBLE),
        ("last_preserved_timestamp", 4, _ONE, _DOUBLE),
    ],
}


def _define_messages() -> dict[str, type]:
    file = descriptor_pb2.FileDescriptorProto(
        name="t0/saver_messages.proto", package="t0", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            other = {"type": kind}
            if isinstance(kind, str):
                other = {"type": _FIELD.TYPE_MESSAGE, "type_name": f".t0.{kind}"}
            message.field.add(name=field, number=number, label=label, **other)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t0.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _define_messages()
BundleEntry, BundleHeader = _CLASSES["BundleEntry"], _CLASSES["BundleHeader"]
CheckpointState = _CLASSES["CheckpointState"]
