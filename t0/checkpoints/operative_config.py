"""Reads the operative config of a Mesh TensorFlow model, and writes one for a converted model.

    read_operative(Path("/models/tiny/operative_config.gin"))["d_model"]        # 512
    facts = facts_of(folder, model)              # activation and dropout rate, checked
    text = plain_bindings("/models/tiny/operative_config.gin")      # for gin, without imports

An operative config may come with a downloaded model, and gin executes the modules that it imports.
So `read_operative` reads only plain bindings (`scope/name = literal` and `%macro`), without gin and
without imports. If gin needs the whole configuration, for a model that is not a T5, it reads the
result of `plain_bindings`. gin must never read a file that the user has not named.
"""

import ast
import io
import os
import posixpath
import re
import sys
import tokenize
from pathlib import Path
from typing import Any

from t0.checkpoints.formats import checked_rate
from t0.checkpoints.shape import shown
from t0.config import gin_files
from t0.config.model_spec import ModelShape
from t0.config.saved_config import FILE, OURS
from t0.errors import UserError, printable
from t0.files import paths

_BINDING = re.compile(r"^([\w./]+)\s*=\s*(.+)$")
_LONGEST_BYTES = 1 << 20
_LONGEST_PARSED_BYTES = 1 << 17  # gin's parser needs seconds for this; published configs have 10 KB
_LONGEST_CHAIN = 100  # the maximum length of a chain of macros whose value is another macro
_MOST_INCLUDES = 20
_MOST_STRINGS = 1000
# The packages from which published operative configs, and configs written by this project, import
# modules. A run imports the modules that it needs.
KNOWN_PACKAGES = ("mesh_tensorflow", "t5", "seqio", "t0", "seqio_tasks", "gin")
# Modules of Mesh TensorFlow with layers that a model may use, and that a run does not import.
_MESH_MODULES = frozenset(
    f"mesh_tensorflow.transformer.{name}"
    for name in (
        *("adaptive_softmax", "evolved_transformer", "fixup_layers", "funnel_transformer"),
        *("heterogeneous_moe", "memory_layers", "universal_transformer"),
    )
)
# The names of parameters that are paths, such as `tpu_estimator_model_fn.model_info_file`, which
# names a file to write.
_PATH_PARAMETER = re.compile(r"(^|_)(file|filename|filepattern|glob|dir|folder|path|checkpoint)$")
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
    text = _read(str(path), _LONGEST_BYTES, "replace").replace("\\\n", " ")
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


def _read(path: str, most_bytes: int, errors: str) -> str:
    try:
        with paths.opened(path) as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise UserError(f"{path} is too large for an operative config")
        return data.decode("utf-8", errors)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a gin file: {shown(str(error))}") from error


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


def plain_bindings(path: str, *, with_companion: bool = True) -> str:
    """Returns the bindings of an operative config as the text of a gin file that runs no code.

    This is the only function that prepares a gin file for gin if the user has not named the file on
    the command line. Nothing is imported or bound. Import statements are left out, because gin
    would execute the modules. An included file must be one of the installed gin files, and its
    bindings take the place of the statement. Parameters that name files, folders or buckets are
    left out, because only the command line names them.

    Args:
      path: the file's path, local or gs://. For gs://, TensorFlow must be imported.
      with_companion: whether the bindings of `operative_config.t0.gin`, if it is next to the file,
        follow.

    Raises:
      UserError: if the file is not a gin file, uses gin's dynamic registration, or includes a file
        that is not installed.
    """
    companion = posixpath.join(posixpath.dirname(path), OURS)
    lines: dict[str, None] = {}  # without duplicates of the line that imports a module
    both = with_companion and paths.exists(companion)
    for name in (path, companion) if both else (path,):
        for statement in _read_statements(name):
            if isinstance(statement, _gin_parser().ImportStatement):
                lines.update(dict.fromkeys(_import_line(statement, name)))
            elif isinstance(statement, _gin_parser().BindingStatement):
                line = _binding_line(statement)
                lines.pop(line, None)  # the last binding counts
                lines[line] = None
    text = "".join(f"{line}\n" for line in lines)
    _parse(path, text)  # a value such as 1e999 cannot be written
    return text


def _gin_parser() -> Any:
    from t0.compat import gin_parser

    return gin_parser


class _Reference(str):
    """A reference to a function or macro, as it is written in a gin file."""

    def __repr__(self) -> str:
        return str(self)


class _References:
    """Makes references for gin's parser, without looking the names up."""

    def configurable_reference(self, name: str, evaluate: bool) -> _Reference:
        return _Reference(f"@{name}{'()' if evaluate else ''}")

    def macro(self, name: str) -> _Reference:
        return _Reference(f"%{name}")


def _check_strings(text: str) -> None:
    """Raises a ValueError for a long row of strings, which gin reads in quadratic time."""
    strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            strings = strings + 1 if token.type == tokenize.STRING else 0
        if strings > _MOST_STRINGS:
            raise ValueError(f"line {token.start[0]}: one text of more than {_MOST_STRINGS} parts")


def _parse(path: str, text: str) -> list[Any]:
    try:
        _check_strings(text)
        return [*_gin_parser().ConfigParser(text, _References())]
    except (*_UNREADABLE, OSError) as error:
        raise UserError(f"{path} is not a gin file: {shown(str(error))}") from error


def _read_statements(path: str, *, is_installed: bool = False) -> list[Any]:
    """Returns the statements of a gin file and of the installed files that it includes."""
    statements: list[Any] = []
    includes = 0
    for statement in _parse(path, _read(path, _LONGEST_PARSED_BYTES, "strict")):
        where = f"{path}, line {statement.location.line_num},"
        if getattr(statement, "module", "").partition(".")[0] == "__gin__":
            raise UserError(
                f"{where} uses gin's dynamic registration, which lets a gin file call any "
                "function. The file is only read because it is next to a checkpoint. Remove the "
                "line, and write the names as in the configs that Mesh TensorFlow saves"
            )
        if not isinstance(statement, _gin_parser().IncludeStatement):
            statements.append(statement)
            continue
        name = gin_files.find_installed_file(statement.filename)
        includes += 1
        if name is None or (includes > _MOST_INCLUDES and not is_installed):
            raise UserError(
                f"{where} includes {shown(statement.filename)}; expected at most {_MOST_INCLUDES} "
                "installed gin files. The file is only read because it is next to a checkpoint. "
                "Copy the bindings of the included file here instead"
            )
        statements += _read_statements(str(name), is_installed=True)
    return statements


def _import_line(statement: Any, path: str) -> list[str]:
    """Returns the line that imports a module of Mesh TensorFlow that is not imported otherwise."""
    module = statement.module
    if module in _MESH_MODULES:
        return [f"import {module}"]
    if module not in sys.modules and module.partition(".")[0] not in KNOWN_PACKAGES:
        print(
            f"note: {printable(path)} imports {module}, which is not run: the file is only read "
            "because it is next to a checkpoint. If the model needs that module and you trust it, "
            f"add --module_import={module}",
            file=sys.stderr,
        )
    return []


def _binding_line(statement: Any) -> str:
    """Returns a binding as a line of a gin file; "" if the parameter names a file or bucket."""
    scope, selector, parameter, value, _ = statement
    name = f"{f'{scope}/' if scope else ''}{selector}"
    in_bucket = _names_bucket(value)
    if not parameter:  # a macro, which other bindings may read
        return f"{name} = {None if in_bucket else repr(value)}"
    if in_bucket or (value is not None and _PATH_PARAMETER.search(parameter)):
        return ""
    return f"{name}.{parameter} = {value!r}"


def _names_bucket(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | set):
        return any(map(_names_bucket, value))
    return isinstance(value, str) and "://" in value


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
