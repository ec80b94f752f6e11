"""Reads the operative config of a Mesh TensorFlow model, and writes one for a converted model.

    read_operative(Path("/models/tiny/operative_config.gin"))["d_model"]        # 512
    facts = facts_of(folder, model)              # activation and dropout rate, checked
    check_imports("/models/tiny/operative_config.gin", folders=[""], also=["my_tasks"])

An operative config may come with a downloaded model, and gin executes the modules that it imports.
So `read_operative` reads only plain bindings (`scope/name = literal` and `%macro`), without gin and
without imports. `check_imports` checks that such a file imports only known modules. It must be
called before gin parses a file that the user has not named on the command line.
"""

import ast
import os
import posixpath
import re
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from t0.checkpoints.formats import checked_rate
from t0.checkpoints.shape import ModelShape, shown
from t0.config import gin_files
from t0.errors import UserError
from t0.files import paths

FILE = "operative_config.gin"
_BINDING = re.compile(r"^([\w./]+)\s*=\s*(.+)$")
_LONGEST_BYTES = 1 << 20
_LONGEST_CHAIN = 100  # the maximum length of a chain of macros whose value is another macro
# The packages from which published operative configs, and configs written by this project, import
# modules.
KNOWN_PACKAGES = ("mesh_tensorflow", "t5", "seqio", "t0", "seqio_tasks", "gin")
_UNREADABLE = (SyntaxError, ValueError, TypeError, tokenize.TokenError, RecursionError, MemoryError)
# Mesh TensorFlow's name of an activation -> the name that this package uses.
_FROM_MESH = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
TO_MESH = {ours: mesh for mesh, ours in _FROM_MESH.items()}


def find_operative(checkpoint: str) -> str | None:
    """Returns the path of the operative config in a checkpoint's folder; None if there is none.

    Args:
      checkpoint: a folder, or the prefix of a checkpoint in it; local or gs://.
    """
    folder = checkpoint if os.path.isdir(checkpoint) else posixpath.dirname(checkpoint)  # noqa: PTH112
    path = posixpath.join(folder, FILE)
    return path if paths.exists(path) else None


EPSILON = "sublayer_rms_norm.epsilon"
# Mesh TensorFlow accepts these two settings only together. They give norms the same names as in the
# first T5 models.
_LEGACY_STACK = ("LayerStack.dropout_rate = %dropout_rate", "LayerStack.norm_epsilon = 1e-06")


def read_operative(path: Path) -> dict[str, Any]:
    """Returns all bindings with literal values, after resolving macros.

    If a name is bound several times, the last binding counts. The keys are names without scope and
    module: "SelfAttention.num_heads".
    """
    with paths.opened(path) as file:
        data = file.read(_LONGEST_BYTES + 1)
    if len(data) > _LONGEST_BYTES:
        raise UserError(f"{path} is too large for an operative config")
    text = data.decode("utf-8", "replace").replace("\\\n", " ")
    bindings: dict[str, Any] = {}
    for line in text.splitlines():
        match = _BINDING.match(line.split(" #")[0].strip())
        if not match:
            continue
        key = ".".join(match[1].rpartition("/")[2].split(".")[-2:])
        value = match[2].strip()
        try:
            bindings[key] = value if value.startswith("%") else ast.literal_eval(value)
        except _UNREADABLE:
            continue
    return {key: _resolve(bindings, value) for key, value in bindings.items()}


def facts_of(folder: Path, model: ModelShape) -> dict[str, Any]:
    """Returns the activation and the dropout rate in a model directory's config, if present.

    Raises:
      UserError: if the model that the config describes is not the model of the tensors.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    bound = read_operative(path)
    _check_model(path, bound, model)
    check_epsilon(bound.get(EPSILON), str(path))
    rate = bound.get("DenseReluDense.dropout_rate", bound.get("dropout_rate"))
    activation = bound.get("DenseReluDense.activation")
    if activation is not None:
        activation = _read_activation(path, activation, model)
    return {"dropout_rate": checked_rate(rate, str(path)), "activation": activation}


def check_epsilon(value: Any, where: str) -> None:
    """Checks the epsilon of a model's norms. `value` is None if the config sets no epsilon.

    Raises:
      UserError: if it is not 1e-6, the only value that conversions support.
    """
    if value not in (None, 1e-6):
        raise UserError(f"{where} says {EPSILON} = {shown(value)}; expected 1e-06, as in T5")


def write_operative(
    path: Path,
    model: ModelShape,
    *,
    activation: str,
    dropout_rate: float | None,
    master_dtype: str,
    legacy_norms: bool,
    source: str,
) -> None:
    """Writes the gin file from which Mesh TensorFlow builds this model.

    Raises:
      UserError: if the dropout rate is not in [0, 1).
    """
    mesh = TO_MESH[activation]
    include = "models/t5.1.0.base.gin" if model.tied else "models/t5.1.1.base.gin"
    bindings = {
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "d_kv": model.d_kv,
        "num_heads": model.heads,
        "num_layers": model.encoder_layers,
        "encoder/make_layer_stack.num_layers": model.encoder_layers,
        "decoder/make_layer_stack.num_layers": model.decoder_layers,
        **({} if dropout_rate is None else {"dropout_rate": checked_rate(dropout_rate, source)}),
        "DenseReluDense.activation": [mesh, "linear"] if model.gated else mesh,
        "transformer_layers.SelfAttention.relative_attention_type": (
            "bias_shared" if model.shared_bias else "bias"
        ),
        "transformer_layers.SelfAttention.relative_attention_num_buckets": model.buckets,
        "Unitransformer.shared_embedding_and_softmax_weights": model.tied,
        "get_variable_dtype.master_dtype": master_dtype,
    }
    lines = [
        "# -*-Python-*-",
        # A line break in the name would end the comment.
        "# The model of the checkpoint in this folder, converted from "
        f"{source if source.isprintable() else ascii(source)}.",
        "",
        f"include {include!r}",
        "",
        *[f"{name} = {value!r}" for name, value in bindings.items()],
        *(_LEGACY_STACK if legacy_norms else ()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_imports(path: str, *, folders: Sequence[str], also: Iterable[str] = ()) -> None:
    """Checks that a gin file imports only known modules, before gin parses the file.

    The files that it includes are found as in gin, and are checked in the same way. Nothing is
    imported.

    Args:
      path: the file's path, local or gs://. For gs://, TensorFlow must be imported.
      folders: the folders in which gin looks for files; "" for the working directory.
      also: additional modules that the file may import, because the user has named them.

    Raises:
      UserError: if a file imports any other module, or uses gin's dynamic registration, which lets
        a gin file call any function of a known module.
    """
    from t0.compat import gin_parser
    from t0.config.t5x_names import read_statements

    packages = (*KNOWN_PACKAGES, *filter(None, also))
    try:
        paths.check_regular(path)
        with gin_files.quiet_search():
            for statement in read_statements(path, folders):
                if isinstance(statement, gin_parser.ImportStatement):
                    _check_import(statement.module, packages, statement.location)
    except (*_UNREADABLE, OSError) as error:
        raise UserError(f"{path} is not a gin file: {shown(str(error))}") from error


def _check_import(module: str, packages: Sequence[str], location: Any) -> None:
    if not any(module == package or module.startswith(f"{package}.") for package in packages):
        raise UserError(
            f"{location.filename}, line {location.line_num}, imports {module}, which gin would "
            "run. The file is read because it is next to a checkpoint. If you trust that module, "
            f"add --module_import={module}. Otherwise remove the line"
        )


def _resolve(bindings: dict[str, Any], value: Any) -> Any:
    for _ in range(_LONGEST_CHAIN):
        if not (isinstance(value, str) and value.startswith("%")):
            return value
        value = bindings.get(value[1:].rpartition(".")[2], bindings.get(value[1:]))
    return None


def _check_model(path: Path, bound: dict[str, Any], model: ModelShape) -> None:
    claims = {
        "SelfAttention.num_heads": model.heads,
        "SelfAttention.key_value_size": model.d_kv,
        "DenseReluDense.hidden_size": model.d_ff,
        "Unitransformer.d_model": model.d_model,
        "Unitransformer.shared_embedding_and_softmax_weights": model.tied,
    }
    for key, actual in claims.items():
        value = bound.get(key)
        if value is not None and (
            value != actual or isinstance(value, bool) != isinstance(actual, bool)
        ):
            claim = f"{key} = {shown(value)}, but the checkpoint next to it has {actual}"
            raise UserError(f"{path} describes another model: {claim}. Move it away, or replace it")


def _read_activation(path: Path, activation: Any, model: ModelShape) -> str:
    functions = activation if isinstance(activation, list) else [activation]
    supported = {(name, "linear") if model.gated else (name,) for name in _FROM_MESH}
    if not all(isinstance(name, str) for name in functions) or tuple(functions) not in supported:
        raise UserError(
            f"{path} says DenseReluDense.activation = {shown(activation)}; expected one of "
            f"{', '.join(_FROM_MESH)}{', followed by linear' if model.gated else ''}"
        )
    return _FROM_MESH[functions[0]]
