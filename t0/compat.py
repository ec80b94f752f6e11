"""Patches that let TensorFlow 2.15, Mesh TensorFlow 0.1.21 and T5 0.9.4 work together.

The patches change the packages only in memory. The installed files stay as published. Import the
packages through this module, which applies the patches first:

    from t0.compat import mesh_utils, mtf
    from t0.compat import tf1 as tf

Each row of `DOORS` maps an attribute of this module to a module of another package. That module is
imported when the attribute is first read, so importing `t0.compat` itself imports nothing.

Each row of `PATCHES` describes one change to another package and the reason for the change. The
change is made once and lasts until the process ends. To replace a function only during one call,
use `replaced`. No other module of this project changes another package.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from t0.errors import AbsentData, UserError, install_command, short_reason


class Patch(NamedTuple):
    """A permanent change to another package.

    Attributes:
      needed_by: the package that does not work without the change.
      why: the problem that the change solves.
      apply: the function that makes the change.
    """

    needed_by: str
    why: str
    apply: Callable[[], None]


# The patches, in the order in which they are applied.
PATCHES: list[Patch] = []
_applied: list[Patch] = []


def _patch(needed_by: str, why: str) -> Callable[[Callable[[], None]], None]:
    """Makes the decorated function a row of `PATCHES`."""
    return lambda apply: PATCHES.append(Patch(needed_by, why, apply))


@_patch("multiprocessing", "a module of the working directory would run in each worker process")
def _skip_working_directory() -> None:
    # A new process searches its working directory before Python's own modules. The working
    # directory can be a downloaded folder.
    from multiprocessing import util

    published = util._args_from_interpreter_flags

    def safe_flags() -> list[str]:
        safe = "-P" if sys.version_info >= (3, 11) else "-I"  # 3.10 has no flag for this alone
        flags = published()
        return flags if safe in flags or "-I" in flags else [safe, *flags]

    util._args_from_interpreter_flags = safe_flags


@_patch("tensorflow", "hundreds of start-up lines hide the important one")
def _silence_start() -> None:
    # TensorFlow reads these two environment variables when its library loads. If the user has set
    # one of the variables, the user's value takes precedence.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # tensorflow_hub and Mesh TensorFlow import pkg_resources. The lock file pins a version of
    # setuptools that still contains pkg_resources.
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    # If Google's API client is installed, TensorFlow imports it. The client warns about old Python
    # versions.
    warnings.filterwarnings("ignore", category=FutureWarning, module="google.api_core")


# The machine type reported by the firmware: "Google Compute Engine" on Google Cloud, including TPU
# VMs.
_PRODUCT_NAME = "/sys/class/dmi/id/product_name"
# If one of these environment variables is set, there is a metadata server.
_GOOGLE_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "TPU_NAME")


def on_googles_machine() -> bool:
    """Returns whether this machine has a Google metadata server, without sending a request."""
    if any(os.environ.get(name) for name in _GOOGLE_VARIABLES):
        return True
    try:
        with open(_PRODUCT_NAME, encoding="utf-8", errors="replace") as file:
            return file.read().startswith("Google")
    except OSError:
        return False


@_patch("tensorflow", "TensorFlow waits minutes for the metadata server")
def _skip_metadata_server() -> None:
    # If no file holds credentials, TensorFlow asks a metadata server for them. Outside Google Cloud
    # no server answers, and TensorFlow waits. On Google Cloud, TensorFlow must ask, because
    # otherwise it would read gs:// anonymously.
    if not on_googles_machine():
        os.environ.setdefault("NO_GCE_CHECK", "true")
    # By default, TensorFlow tries to connect ten times, for 120 s each time, which looks like a
    # hang.
    os.environ.setdefault("GCS_REQUEST_CONNECTION_TIMEOUT_SECS", "10")
    os.environ.setdefault("GCS_METADATA_REQUEST_TIMEOUT_SECS", "10")


@_patch(
    "seqio",
    "register_tensor_conversion_function moved in TensorFlow 2.14; Mesh imports the old name",
)
def _add_tensor_conversion_function() -> None:
    from tensorflow.python.framework import ops, tensor_conversion_registry

    if not hasattr(ops, "register_tensor_conversion_function"):
        ops.register_tensor_conversion_function = (
            tensor_conversion_registry.register_tensor_conversion_function
        )


@_patch("seqio", "t5.models imports PyTorch unconditionally")
def _allow_t5_models_without_torch() -> None:
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return

    class HfPyTorchModel:
        """Replaces `t5.models.hf_model.HfPyTorchModel` if PyTorch is not installed."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise UserError(
                "t5.models.HfPyTorchModel needs torch and transformers, which are not installed: "
                f"{install_command('hf')}"
            )

    stand_in = types.ModuleType("t5.models.hf_model", HfPyTorchModel.__doc__)
    stand_in.HfPyTorchModel = HfPyTorchModel
    sys.modules.setdefault("t5.models.hf_model", stand_in)


@_patch("seqio", "a gin file that imports a removed module cannot be parsed")
def _add_modules_of_old_configs() -> None:
    # Operative configs of public checkpoints import these modules, which no longer exist.
    for name in ("t5.data.sentencepiece_vocabulary", "seqio.sentencepiece_vocabulary"):
        sys.modules.setdefault(name, types.ModuleType(name, "Gone; kept importable for gin files."))


@_patch("gin", "a folder models/ on Python's path makes gin's search for a file fail")
def _handle_gin_files_outside_packages() -> None:
    # gin also looks for models/x.gin in a Python package `models`. If a folder on Python's path has
    # that name, Python treats the folder as a package without a file, and gin raises "expected str,
    # not NoneType".
    from gin import resource_reader

    published = resource_reader._parse_config_path

    def parse_config_path(config_path: str) -> str:
        try:
            return published(config_path)
        except TypeError as error:
            raise ValueError(f"{config_path} is in no package") from error

    resource_reader._parse_config_path = parse_config_path


@_patch("seqio", "T0_VOCAB replaces T5's vocabulary everywhere")
def _set_vocabulary_of_t5() -> None:
    # When T5's own tasks are registered, they read their vocabulary path from DEFAULT_SPM_PATH.
    path = os.environ.get("T0_VOCAB")
    if path:
        # `from t5.data import utils` would return seqio's module, because of star imports in
        # t5.data.
        importlib.import_module("t5.data.utils").DEFAULT_SPM_PATH = path


@_patch("seqio", "a dataset function without the argument `seed` cannot be read in a fixed order")
def _allow_dataset_functions_without_seed() -> None:
    from seqio import FunctionDataSource

    published = FunctionDataSource.get_dataset

    def get_dataset(  # noqa: PLR0913 (SeqIO's signature)
        self: Any,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        **unused: Any,
    ) -> Any:
        # SeqIO requires that a dataset function takes the seed as its third argument.
        takes_seed = [*inspect.signature(self._dataset_fn).parameters][2:3] == ["seed"]
        seed_argument = seed if takes_seed else None
        return published(self, split, shuffle, seed_argument, shard_info, **unused)

    FunctionDataSource.get_dataset = get_dataset


@_patch("seqio", "a feature that no preprocessor makes ends every command with a traceback")
def _explain_missing_features() -> None:
    from seqio import Task

    published = Task._validate_preprocessing

    def validate_preprocessing(self: Any, dataset: Any) -> Any:
        try:
            return published(self, dataset)
        except ValueError as error:
            raise UserError(
                f"task {self.name}: {error}. Its preprocessors make: "
                f"{', '.join(sorted(dataset.element_spec)) or 'nothing'}. Make the feature in a "
                "preprocessor, or set required=False in its seqio.Feature"
            ) from error

    Task._validate_preprocessing = validate_preprocessing


@_patch(
    "seqio",
    "a TFDS dataset without its data is reported as having no splits, or a run downloads it",
)
def _report_absent_tfds_data() -> None:
    from seqio import Task
    from seqio.utils import LazyTfdsLoader as Loader

    builder_of, load, splits = Loader._get_builder, Loader.load, Task.splits

    def get_builder(self: Any, split: str | None = None) -> Any:
        name, folder = self.get_split_params(split)
        try:
            builder = builder_of(self, split)
        except (AssertionError, ImportError, ValueError) as error:
            raise AbsentData(
                f"TensorFlow Datasets cannot open {name or folder}: {short_reason(error)}. Check "
                "the dataset's name, and that this release has its version"
            ) from error
        if not builder.info.splits:
            # TensorFlow Datasets caches builders. A cached builder that was created before its data
            # was prepared would not notice the new data.
            Loader._MEMOIZED_BUILDERS.pop(self._get_builder_key(name, folder), None)
            data_dir_argument = f", data_dir={str(folder)!r}" if folder else ""
            raise AbsentData(
                f"the data of TensorFlow Datasets' {name} is not in {builder.data_dir}. Prepare "
                'it once, with a network: python -c "import tensorflow_datasets as tfds; '
                f'tfds.builder({name!r}{data_dir_argument}).download_and_prepare()"; or set the '
                "folder that has it, with --tfds_data_dir or the variable TFDS_DATA_DIR"
            )
        return builder

    def load_prepared(self: Any, split: str | None, *args: Any, **kwargs: Any) -> Any:
        self._get_builder(split)
        return load(self, split, *args, **kwargs)

    def splits_of_data_or_cache(self: Any) -> Any:
        try:
            return splits.fget(self)
        except AbsentData:
            cached = cached_splits(self.cache_dir) if self.cache_dir else ()
            if not cached:
                raise
            return cached

    Loader._get_builder, Loader.load = get_builder, load_prepared
    Task.splits = property(splits_of_data_or_cache)


def cached_splits(folder: str) -> tuple[str, ...]:
    """Returns the splits of a task's cache, sorted."""
    from seqio.utils import get_cached_info_path
    from tensorflow.io import gfile

    start, end = get_cached_info_path(folder, "*").split("*")
    return tuple(sorted(p[len(start) : -len(end)] for p in gfile.glob(f"{start}*{end}")))


class _WithoutGraphText:
    """A vocabulary that detokenizes in the graph only if `in_graph` is set."""

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary
        self.in_graph = False

    def __getattr__(self, name: str) -> Any:
        if name == "decode_tf" and not self.in_graph:
            raise AttributeError(name)
        return getattr(self._vocabulary, name)


@_patch(
    "mesh_tensorflow", "off TPU, scoring crashes at its end, because it gets text instead of ids"
)
def _keep_ids_for_scoring() -> None:
    # Without a TPU, the model detokenizes in the graph. But Mesh TensorFlow's scoring expects ids.
    # After minutes, the scoring raises "'bytes' object has no attribute 'tolist'" (or 'any'). So
    # this patch makes the model return ids. Only an exported model still returns text, as it must.
    from mesh_tensorflow.transformer import utils

    published = utils.get_estimator

    def get_estimator(
        *args: Any, vocabulary: Any, score_in_predict_mode: bool = False, **kwargs: Any
    ) -> Any:
        kwargs["score_in_predict_mode"] = score_in_predict_mode
        if not score_in_predict_mode:
            return published(*args, vocabulary=vocabulary, **kwargs)
        vocabularies = vocabulary if isinstance(vocabulary, tuple) else (vocabulary,)
        ids = tuple(_WithoutGraphText(entry) for entry in vocabularies)
        estimator = published(*args, vocabulary=ids if len(ids) > 1 else ids[0], **kwargs)
        export = estimator.export_saved_model

        def export_with_text(*export_args: Any, **export_kwargs: Any) -> Any:
            for entry in ids:
                entry.in_graph = True
            return export(*export_args, **export_kwargs)

        estimator.export_saved_model = export_with_text
        return estimator

    utils.get_estimator = get_estimator


@_patch("mesh_tensorflow", "Mesh writes b'Paris' instead of Paris")
def _write_lines_as_text() -> None:
    # Mesh TensorFlow's function writes inputs, targets and decodes as bytes literals (b'Paris').
    # T5's function does not create the folder. So this patch replaces both functions.
    from mesh_tensorflow.transformer import utils as mesh_utils
    from t5.models import utils as t5_utils

    published = mesh_utils.write_lines_to_file

    def write_lines_to_file(lines: Iterable[Any], filename: str) -> None:
        as_text = (x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in lines)
        published(list(as_text), filename)

    mesh_utils.write_lines_to_file = t5_utils.write_lines_to_file = write_lines_to_file


@_patch("mesh_tensorflow", "Mesh prints a line for each step")
def _hide_loss_lines() -> None:
    # Mesh TensorFlow's model function prints the loss of every step with tf.Print. Training has its
    # own progress line, so this patch removes these prints.
    import tensorflow.compat.v1 as tf

    tf.Print = lambda input_, *args, **kwargs: input_


# Package -> the packages whose patches it needs: the package itself and the packages it imports.
_NEEDS = {
    "multiprocessing": ("multiprocessing",),
    "gin": ("gin",),
    "tensorflow": ("tensorflow",),
    "seqio": ("gin", "tensorflow", "seqio"),
    "mesh_tensorflow": ("gin", "tensorflow", "seqio", "mesh_tensorflow"),
}
_NEEDS |= {"tensorflow_datasets": _NEEDS["seqio"], "t5": _NEEDS["mesh_tensorflow"]}
_NEEDS |= {"tensorflow_estimator": _NEEDS["tensorflow"]}

# Attribute of this module -> module of another package.
DOORS: dict[str, str] = {
    "gin": "gin",
    "gin_config": "gin.config",
    "gin_parser": "gin.config_parser",
    "glue_utils": "t5.data.glue_utils",
    "learning_rate_schedules": "mesh_tensorflow.transformer.learning_rate_schedules",
    "mesh_attention": "mesh_tensorflow.transformer.attention",
    "mesh_dataset": "mesh_tensorflow.transformer.dataset",
    "mesh_layers": "mesh_tensorflow.layers",
    "mesh_ops": "mesh_tensorflow.ops_with_redefined_builtins",
    "mesh_utils": "mesh_tensorflow.transformer.utils",
    "mtf": "mesh_tensorflow",
    "mtf_ops": "mesh_tensorflow.ops",
    "optimize": "mesh_tensorflow.optimize",
    "seqio": "seqio",
    "simd_mesh_impl": "mesh_tensorflow.simd_mesh_impl",
    "t5_mesh": "t5.models.mesh_transformer",
    "t5_metrics": "t5.evaluation.metrics",
    "t5_models": "t5.models",
    "t5_mtf_model": "t5.models.mtf_model",
    "t5_postprocessors": "t5.data.postprocessors",
    "t5_preprocessors": "t5.data.preprocessors",
    "t5_utils": "t5.models.utils",
    "tensor_util": "tensorflow.python.framework.tensor_util",
    "tf": "tensorflow",
    "tf1": "tensorflow.compat.v1",
    "tf_estimator": "tensorflow.compat.v1.estimator",
    "tfds": "tensorflow_datasets",
    "tpu_device_assignment": "tensorflow.python.tpu.device_assignment",
    "tpu_estimator": "tensorflow_estimator.python.estimator.tpu.tpu_estimator",
    "tpu_topology": "tensorflow.python.tpu.topology",
    "transformer": "mesh_tensorflow.transformer.transformer",
    "transformer_layers": "mesh_tensorflow.transformer.transformer_layers",
}
# The functions of other packages that `replaced` may replace during a call. Each key is
# "attribute.function", where the attribute is a key of `DOORS`. Each value is the reason.
REPLACEABLE: dict[str, str] = {
    "gin_parser.ConfigParser": "T5X's gin statements are translated into ours",
    "mesh_attention.attention": "einsums and chains of small operations are slow on CPUs and GPUs",
    "mesh_ops.gelu": "a chain of small operations is slow on CPUs and GPUs",
    "transformer.sublayer_rms_norm": "a chain of small operations is slow on CPUs and GPUs",
    "mesh_utils.get_estimator": "off TPU our loop uses the run's settings, not an estimator",
    "mesh_utils.train_model": "the Model API trains with our loop",
    "mesh_utils.eval_model": "our evaluation gets the estimator of a model that only Mesh decodes",
    "mesh_utils.infer_model": "off TPU our inference runs",
    "mesh_utils.get_checkpoint_iterator": "weights may be in Hugging Face's or T5X's format",
    "mesh_utils.get_step_from_checkpoint_path": "such weights have no step in their path",
    "mtf_ops.random_uniform": "a rehearsal's two programs would draw different random numbers",
    "t5_mtf_model._parse_operative_config": "gin would run the imports of a downloaded file",
    "t5_mesh.tf": "T5 reads TSV files unchecked, and does not decompress .gz files",
}
# Prefixes of T5's modules that do not need Mesh TensorFlow. Tasks and caching import these modules.
_WITHOUT_MESH = ("t5.data.", "t5.evaluation.")


def __getattr__(name: str) -> types.ModuleType:
    """Imports, patches and returns the module behind the attribute `name` of `DOORS`."""
    if name not in DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = DOORS[name]
    apply("seqio" if path.startswith(_WITHOUT_MESH) else path.partition(".")[0])
    # Some values of `DOORS` are not importable modules, but attributes that TensorFlow loads
    # lazily, such as tensorflow.compat.v1.estimator.
    module = pkgutil.resolve_name(path)
    globals()[name] = module
    return module


def apply(package: str = "mesh_tensorflow") -> None:
    """Applies the rows of `PATCHES` that `package` and its imports need, once per process.

    Args:
      package: "multiprocessing", "gin", "tensorflow", "seqio" or "mesh_tensorflow". For
        "mesh_tensorflow", all rows but those of "multiprocessing" are applied.
    """
    for patch in PATCHES:
        if patch.needed_by in _NEEDS[package] and patch not in _applied:
            patch.apply()
            _applied.append(patch)


@contextlib.contextmanager
def replaced(name: str, function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Replaces a function of another package during a `with` block.

        with compat.replaced("mesh_utils.infer_model", counted) as published:
            ...  # Mesh TensorFlow calls counted, which may call published

    Blocks can be nested. When a block ends, also because of an error, the previous function is
    restored.

    Args:
      name: a key of `REPLACEABLE`: an attribute of this module, a dot, and the name of a function
        in the module behind the attribute.
      function: the replacement, which takes the same arguments.

    Yields:
      the function that was replaced.

    Raises:
      ValueError: `name` is not in `REPLACEABLE`.
    """
    if name not in REPLACEABLE:
        raise ValueError(f"compat.REPLACEABLE has no row '{name}'; it has {', '.join(REPLACEABLE)}")
    path, _, attribute = name.rpartition(".")
    holder = pkgutil.resolve_name(f"{__name__}:{path}")
    previous = getattr(holder, attribute)
    setattr(holder, attribute, function)
    try:
        yield previous
    finally:
        setattr(holder, attribute, previous)
