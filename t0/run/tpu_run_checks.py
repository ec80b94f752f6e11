"""Checks of a configured run on a TPU: a table like `t0.run.tpu_checks`'s, read after gin.

found = tpu_checks.check_machine("my-slice")
check_run(found, model_dir="gs://mine/model", cores=mesh_cores())
"""

import dataclasses
from pathlib import Path

from t0.compat import mtf, seqio
from t0.config.bindings import bound
from t0.files import paths
from t0.mesh import cloud
from t0.mesh.topology import SLICES, topology
from t0.run.tpu_checks import ALL, REMOTE, Found, Row, check_rows
from t0.tasks.vocabulary import vocabulary_path


@dataclasses.dataclass(frozen=True)
class Configured(Found):
    """The TPU of a run, and what gin and the flags say of the run.

    Attributes:
      model_dir: the folder of its checkpoints; None where neither a flag nor gin names one.
      cache_dirs: the folders with cached tasks.
      cores: the cores of the configured mesh; None where it is not a mesh of TPU cores.
      checkpoint: the checkpoint to start from.
      vocabulary: the path of the SentencePiece model.
      custom_ops: whether packing is to use operations that no TensorFlow server has.
    """

    model_dir: str | None = None
    cache_dirs: tuple[str, ...] = ()
    cores: int | None = None
    checkpoint: str | None = None
    vocabulary: str = ""
    custom_ops: bool = False

    @property
    def hosts(self) -> int:
        """The hosts of the slice, as far as the machine, the API or the configuration know."""
        named = cloud.hosts_of(self.accelerator_type)
        return named or max(1, (self.cores or 0) // topology("v3-8").cores)


def _no_model_dir(run: Configured) -> str | None:
    if run.model_dir:
        return None
    return (
        "no model directory is given, and a run on a TPU does not write to a default one: "
        "--model_dir=gs://BUCKET/FOLDER"
    )


def _other_slice(run: Configured) -> str | None:
    kind = run.accelerator_type
    if run.cores is None or kind not in SLICES:
        return None
    slice_ = topology(kind)
    # A v4 chip may appear as one core ("megacore") or as two.
    wanted = {slice_.cores} | ({slice_.cores // 2} if kind.startswith("v4-") else set())
    if run.cores in wanted:
        return None
    asked = bound("tpu_mesh_shape.tpu_topology", evaluate=False)
    named = f"tpu_mesh_shape.tpu_topology = {asked!r}" if asked else "run.mesh_shape"
    return (
        f"the mesh has {run.cores} cores ({named}), the TPU is a {kind} with {slice_.cores}. "
        f"Add --gin_file=mesh/{kind}.gin after the other files, or start on a slice of the mesh's"
    )


def _local_folders(run: Configured) -> str | None:
    if run.hosts < 2:
        return None
    folders = {"--model_dir": run.model_dir, "the checkpoint to start from": run.checkpoint}
    folders |= {f"cache folder {n}": path for n, path in enumerate(run.cache_dirs, 1)}
    local = [f"{name} ({at})" for name, at in folders.items() if at and not paths.is_remote(at)]
    if not local:
        return None
    return (
        f"the {run.hosts} hosts of the slice share no disk, and on this machine's alone "
        f"{'is' if len(local) == 1 else 'are'} {', '.join(local)}. Copy to a bucket of the slice's "
        "region and name that: gsutil -m cp -r FOLDER gs://BUCKET/FOLDER"
    )


def _custom_ops(run: Configured) -> str | None:
    if not run.custom_ops:
        return None
    return (
        "pack_dataset.use_custom_ops = True packs with operations that have to be built into "
        "TensorFlow, which a TPU's hosts do not have. --gin_param='pack_dataset.use_custom_ops = "
        "False'"
    )


def _absent_vocabulary(run: Configured) -> str | None:
    path = run.vocabulary
    if path.startswith("gs://") or Path(path).is_file():
        return None
    return (
        f"there is no vocabulary {path}; a TPU's host has its own disk. Name one that is on this "
        "machine or a bucket: --vocab=FILE or T0_VOCAB=FILE"
    )


RUN = (
    Row("model directory", ALL, _no_model_dir),
    Row("topology", ALL, _other_slice),
    Row("folders on gs://", REMOTE, _local_folders),
    Row("no custom operations", REMOTE, _custom_ops),
    Row("vocabulary", ALL, _absent_vocabulary),
)


def check_run(
    found: Found, *, model_dir: str | None, cores: int | None, checkpoint: str | None = None
) -> Configured:
    """Checks the configured run against the TPU that it is for; gin has been parsed.

    Args:
      found: what `check_machine` returned.
      model_dir: the folder of the run's checkpoints; None where nothing names one.
      cores: the cores of the configured mesh.
      checkpoint: the checkpoint that the run starts from or reads, if not one in `model_dir`.

    Returns:
      what the rows of the table were asked about.

    Raises:
      UserError: with every row of the table that is wrong, and its remedy.
    """
    parts = {field.name: getattr(found, field.name) for field in dataclasses.fields(Found)}
    run = Configured(
        **parts,
        model_dir=model_dir,
        cache_dirs=tuple(seqio.get_global_cache_dirs()),
        cores=cores,
        checkpoint=checkpoint,
        vocabulary=vocabulary_path(),
        custom_ops=bool(bound("pack_dataset.use_custom_ops", False)),
    )
    check_rows(RUN, run)
    return run


def mesh_cores() -> int | None:
    """Returns the number of cores of the mesh that gin configures; None without a mesh."""
    shape = bound("run.mesh_shape")
    return None if shape is None else mtf.convert_to_shape(shape).size
