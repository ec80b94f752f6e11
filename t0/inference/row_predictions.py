"""Predicts an answer for each row of a file with a prompt, on any engine. A killed run can resume.

    task = RowTask(open_rows("tickets.csv"), prompt, vocabulary, {"inputs": 512, "targets": 16})
    rank_rows(task, file, open_model, limits, checkpoint, "float32")    # a prompt with choices
    task.source()                           # the inputs, for a prompt without answer choices
    write_predictions(task, "predictions.jsonl", "tickets_predicted.csv", all_choices=False)

If the prompt has answer choices, the rows are divided into windows, and each window becomes a task
of `t0.evaluation.ranking`. The scores of a task are saved when its last choice is scored. If the
prompt has no answer choices, the model generates a text for each input. In both cases, a JSON line
with the prediction is first written for each row that can be rendered. `write_predictions` then
writes the user's rows with the predictions from these lines.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.errors import UserError, reading, say
from t0.evaluation.batching import BatchLimits
from t0.evaluation.model import Ability, Model, OpenModel
from t0.evaluation.ranked_examples import RankTaskFacts, ScoringTask, count_examples
from t0.evaluation.ranking import RankEvaluationSettings, score_tasks, with_scores
from t0.evaluation.records import ChoiceRecord, sort_records
from t0.files.any_path import binary, read_lines
from t0.files.table_files import check_rows, write_table
from t0.inference.inputs import InferenceExample, InputSource
from t0.inference.predictions import BatchPredictions, PredictionFile
from t0.progress import ProgressLine
from t0.prompts import Example, is_missing
from t0.prompts.few_shot import TextMeasure, token_measure
from t0.prompts.model_prompts import RecordedPrompt
from t0.sources.column_kinds import make_converters
from t0.sources.folders import files_of, split_file
from t0.sources.readers import LISTED_SUFFIXES, Reader, reader_for

# The number of rows in a window. The predictions of a window are saved together.
WINDOW_ROWS = 128
PREDICTION, PROBABILITY, SCORE = "prediction", "probability", "score"


@dataclasses.dataclass(frozen=True)
class RowFile:
    """A file with rows.

    Attributes:
      path: the file, or a folder of `Dataset.save_to_disk`.
      reader: the reader of the file.
      columns: the names of the columns.
      count: the number of rows.
    """

    path: Path
    reader: Reader
    columns: tuple[str, ...]
    count: int


def open_rows(path: str) -> RowFile:
    """Opens a file of rows, in any format that training data may have.

    Raises:
      UserError: if the file does not exist, is malformed, has an unknown format, or has no rows.
    """
    if not Path(path).exists():
        raise UserError(f"{path} does not exist. Expected a file with rows")
    file = split_file(Path(path))
    if file is None:
        raise UserError(
            f"{path} is not a file with rows. They are read from {LISTED_SUFFIXES}, chosen by the "
            "extension"
        )
    reader = reader_for(file.kind, (file.path,))
    rows = RowFile(Path(path), reader, reader.columns(), reader.count())
    if not rows.count:
        raise UserError(f"{path} has no rows: there is nothing to predict")
    return rows


@dataclasses.dataclass(frozen=True)
class RowTask:
    """Rows, and the prompt that renders them.

    Attributes:
      rows: the rows.
      prompt: the prompt.
      vocabulary: the vocabulary, as in SeqIO; None if no tokens are needed.
      lengths: the limits {"inputs": tokens, "targets": tokens}.
    """

    rows: RowFile
    prompt: RecordedPrompt
    vocabulary: Any = None
    lengths: Mapping[str, int] | None = None

    @functools.cached_property
    def _columns(self) -> dict[str, str]:
        """Name in the template -> column of the file. Templates have "_" in place of hyphens."""
        own = {name.replace("-", "_"): name for name in self.rows.columns}
        renamed = {name: old for name, old in self.prompt.template.columns if old in own.values()}
        return own | renamed

    @functools.cached_property
    def _converters(self) -> dict[str, Callable[[Any], Any]]:
        """Name in the template -> a function that reads a value as in the training data."""
        prompt = self.prompt
        nested = prompt.compiled.nested_columns
        read = make_converters(prompt.dataset, prompt.kinds, nested)
        shown = prompt.compiled.input_columns & self._columns.keys()
        return {name: read[name] for name in sorted(shown & read.keys())}

    @functools.cached_property
    def earlier_columns(self) -> tuple[str, ...]:
        """The last columns of a file that `write_predictions` wrote; they are replaced.

        If the template reads one of these columns, the result is empty.
        """
        names = self.rows.columns
        for start in range(1, len(names) - 1):
            ours = names[start : start + 2] in ((PREDICTION, PROBABILITY), (PREDICTION, SCORE))
            rest = names[start + 2 :]
            if ours and all(name.startswith(f"{PROBABILITY}_") for name in rest):
                read = {self._columns.get(name) for name in self.prompt.compiled.columns}
                return () if read & {*names[start:]} else names[start:]
        return ()

    @functools.cached_property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns of the file, without those of earlier predictions."""
        return self.rows.columns[: len(self.rows.columns) - len(self.earlier_columns)]

    @functools.cached_property
    def label_columns(self) -> list[str]:
        """The columns of the file that the template uses for the target but not for the input."""
        names = sorted(self.prompt.compiled.columns - self.prompt.compiled.input_columns)
        return [self._columns[name] for name in names if name in self._columns]

    def check(self, output: str, *, all_choices: bool) -> None:
        """Checks the rows and the output before any prediction, which may take hours.

        Args:
          output: the file that `write_predictions` will write.
          all_choices: as for `write_predictions`.

        Raises:
          UserError: if a column is missing, a column has the name of an output column, there are
            no choices to write, a row is malformed, no row can be rendered, or the output cannot
            hold the rows.
        """
        missing = sorted(self.prompt.compiled.input_columns - self._columns.keys())
        if missing:
            old = dict(self.prompt.template.columns)
            raise UserError(
                f"{self.rows.path} has no column {', '.join(old.get(n, n) for n in missing)}, "
                f"which the prompt {self.prompt.task} uses. Its columns: "
                f"{', '.join(self.rows.columns)}"
            )
        if all_choices and not self.prompt.is_ranked:
            raise UserError(
                f"--all_choices: the prompt {self.prompt.task} has no answer choices. Leave the "
                "flag out, or choose a prompt with choices (--prompt)"
            )
        choices = self.prompt.compiled.fixed_choices or ["1"]  # each row has a first choice
        self.check_names([*self.added_columns, *(_choice_columns(choices) if all_choices else ())])
        example, fault = None, ""
        for number, row in enumerate(self.rows.reader.rows(0, None)):  # the reader checks each row
            if not example:
                example, fault = self.render(row, number)
        if not example:
            raise UserError(f"none of the {self.rows.count:,} rows can be rendered: {fault}")
        check_rows(output, self.kept_columns, self.rows.reader.rows(0, None))

    def check_names(self, added: Sequence[str]) -> None:
        """Raises a UserError if the file already has a column that predictions add."""
        taken = [name for name in added if name in self.kept_columns]
        if taken:
            raise UserError(
                f"{self.rows.path} already has a column {taken[0]}, which predictions would "
                "replace: rename it"
            )

    @property
    def added_columns(self) -> tuple[str, str]:
        """The names of two columns: the prediction, and its probability or score."""
        return PREDICTION, PROBABILITY if self.prompt.is_ranked else SCORE

    def render(self, row: Mapping[str, Any], number: int) -> tuple[Example | None, str]:
        """Renders a row without its label. If that fails, returns None and the reason."""
        variables = {name: row[column] for name, column in self._columns.items()}
        shown = [variables[name] for name in self.prompt.compiled.input_columns]
        if shown and all(is_missing(value) or not str(value).strip() for value in shown):
            return None, f"in row {number} the prompt's columns are empty"
        try:
            for name, read in self._converters.items():
                try:
                    variables[name] = read(variables[name])
                except ValueError as error:
                    column = self._columns[name]
                    raise UserError(f"in row {number} the column '{column}': {error}") from error
            example = self.prompt.compiled.example(variables, number, labeled=False)
        except UserError as error:
            return None, str(error)
        if example and example.choices == []:
            return None, f"in row {number} all answer options are blank"
        if example and self.vocabulary is not None:
            example = self.prompt.add_exemplars(example, self._measure)
        return example, "" if example else f"row {number} renders to an empty text"

    @functools.cached_property
    def _measure(self) -> TextMeasure:
        length = self.lengths["inputs"] - self.prompt.inputs_eos
        count = functools.lru_cache(len(self.prompt.exemplars) * 2)(
            lambda text: len(self.vocabulary.encode(text))
        )
        return token_measure(count, length)

    def examples(self) -> Iterator[tuple[int, Example]]:
        """Yields (row number, rendered texts) for each row that can be rendered."""
        for number, row in enumerate(self.rows.reader.rows(0, None)):
            example, _ = self.render(row, number)
            if example:
                yield number, example

    def _encode(self, text: str, eos: bool) -> list[int]:
        return [*self.vocabulary.encode(text), *[self.vocabulary.eos_id] * eos]

    def records(self) -> Iterator[ChoiceRecord]:
        """Yields the answer choices of the rows. No choice is marked as correct."""
        with ProgressLine(self.rows.count, unit="row", doing="rendering") as progress:
            for number, example in self.examples():
                inputs = np.asarray(self._encode(example.inputs, self.prompt.inputs_eos), np.int32)
                for index, text in enumerate(example.choices):
                    targets = np.asarray(self._encode(text, True), np.int32)
                    yield ChoiceRecord(number, index, inputs, targets, False, text)
                progress.count(1)

    def source(self) -> InputSource:
        """Returns the prompted inputs of all rows as a source for decoding."""

        def read(shard: int, shards: int) -> Iterator[InferenceExample]:
            for number, example in self.examples():
                if number % shards == shard:
                    tokens = self._encode(example.inputs, self.prompt.inputs_eos)
                    yield InferenceExample(number, example.inputs, None, tokens)

        return InputSource("rows", self.rows.count, self.facts(), read)

    def facts(self) -> dict[str, Any]:
        """Returns the facts about the rows and the prompt that determine the predictions."""
        digest = hashlib.sha256()
        for path in files_of(split_file(self.rows.path)):
            with reading(path), binary(path) as file:
                while block := file.read(2**20):
                    digest.update(block)
        prompt = json.dumps(dataclasses.asdict(self.prompt.template) | {"where": ""})
        few_shot = self.prompt.few_shot
        if self.prompt.exemplars or (few_shot and few_shot.outer_templates):
            shots = [dataclasses.asdict(shot) for shot in self.prompt.exemplars]
            prompt += json.dumps([dataclasses.asdict(few_shot), shots])
        return {
            "rows_sha256": digest.hexdigest(),
            "prompt": self.prompt.task,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        }


def rank_rows(
    task: RowTask,
    file: PredictionFile,
    open_model: OpenModel,
    limits: Callable[[Model], BatchLimits],
    checkpoint: str,
    dtype: str,
) -> None:
    """Scores the answer choices of all rows, and writes a line for each row to `file`.

    Args:
      task: the rows.
      file: the unfinished file for these lines.
      open_model: the function that opens the model.
      limits: a function of the open model that returns the limits of a batch.
      dtype: the type of activations.

    Raises:
      UserError: if a score is not a number, or the file cannot be written.
    """
    windows = _read_windows(task)
    numbers = {window.name: number for number, window in enumerate(windows)}
    filled = [window for window in windows if len(window.choices)]
    unsaved = {name for name, number in numbers.items() if (number, 0) not in file.finished_batches}
    # The plan covers all windows, so that a resumed run scores each choice in the same batch.
    model = open_model(Ability.SCORE, dtype=dtype)
    most = RankEvaluationSettings.max_shapes
    plan = model.plan(filled, limits(model), checkpoint=checkpoint, most_shapes=most)
    say(f"restored {model.restore(checkpoint)} variables from {checkpoint}")
    total = sum(int(window.choices.sum()) for window in filled if window.name in unsaved)
    with ProgressLine(total, unit="choice", doing="predicting") as progress:
        for window in windows:
            if window.name in unsaved and not len(window.choices):
                file.save_batch(numbers[window.name], 0, BatchPredictions({}, {}))
        for window, scores in score_tasks(
            model, filled, plan, task_names=unsaved, tick=progress.count
        ):
            file.save_batch(numbers[window.name], 0, _choice_lines(window, scores))
    summary = file.finish([1] * len(windows))
    for kind, name in (("inputs", "truncated_inputs"), ("choices", "truncated_targets")):
        if summary.get(name):
            print(f"  {kind} cut at the model's length limits: {summary[name]:,}")


def _read_windows(task: RowTask) -> list[ScoringTask]:
    """Renders and tokenizes the rows, and returns a scoring task for each window."""
    read = sort_records(task.records())
    windows = []
    for start in range(0, task.rows.count, WINDOW_ROWS):
        stop = min(start + WINDOW_ROWS, task.rows.count)
        name = f"{task.prompt.task}, rows {start} to {stop - 1}"
        facts = RankTaskFacts(name, task.prompt.dataset, task.prompt.template.name, ())
        read_window = functools.partial(read, start, stop)
        windows.append(count_examples(facts, read_window, task.lengths))
    return windows


def _choice_lines(window: ScoringTask, scores: np.ndarray) -> BatchPredictions:
    lines = {}
    for example, own_scores in with_scores(window, scores):
        line = {
            "idx": example.idx,
            "choices": [choice.text for choice in example.choices],
            "scores": [round(float(score), 5) for score in own_scores],
        }
        lines[example.idx] = json.dumps(line, ensure_ascii=False)
    cut = window.truncated
    counts = {"truncated_inputs": cut.inputs, "truncated_targets": cut.targets}
    return BatchPredictions(lines, {"examples": len(lines), **counts})


def write_predictions(task: RowTask, lines: str, output: str, *, all_choices: bool) -> list[str]:
    """Writes the user's rows with their predictions.

    Args:
      task: the rows.
      lines: the path of the file with a JSON line for each row that can be rendered.
      output: the file to write; its extension selects the format.
      all_choices: whether to add a column with the probability of each choice.

    Returns:
      notes for the user, one per line.

    Raises:
      UserError: if a column of the rows has the name of a column to add, or the file cannot be
        written.
    """
    names = _choice_columns(_name_choices(task)) if all_choices else []
    added = (*task.added_columns, *names)
    task.check_names(added)
    failures: list[str] = []
    labels = blanks = 0
    varied = task.prompt.is_ranked and not task.prompt.compiled.fixed_choices

    def predicted_rows() -> Iterator[dict[str, Any]]:
        nonlocal labels, blanks
        predictions = _read_lines(lines)
        prediction = next(predictions, None)
        for number, row in enumerate(task.rows.reader.rows(0, None)):
            values = {}
            labels += any(_is_label(row.get(name)) for name in task.label_columns)
            if prediction and prediction["idx"] == number:
                blank = _left_out(task.render(row, number)[0]) if varied else ()
                blanks += bool(blank)
                used = [name for index, name in enumerate(names) if index not in blank]
                values = _values(task, prediction, used)
                prediction = next(predictions, None)
            else:
                failures.append("" if failures else task.render(row, number)[1])
            yield {**row, **dict.fromkeys(added), **values}

    write_table(output, (*task.kept_columns, *added), predicted_rows())
    notes = [f"{output}: {task.rows.count:,} rows, predicted with the prompt {task.prompt.task}"]
    if task.earlier_columns:
        notes.append(f"  replaced earlier predictions: {', '.join(task.earlier_columns)}")
    if labels:
        columns = ", ".join(task.label_columns)
        notes.append(f"  labels in the column {columns} are ignored: {labels:,} rows")
    if blanks:
        notes.append(f"  blank options are left out: {blanks:,} row{'s' * (blanks != 1)}")
    if failures:
        number = f"{len(failures):,} row{'s' * (len(failures) != 1)}"
        notes.append(
            f"  {number} could not be rendered: the prediction is empty. First: {failures[0]}"
        )
    return notes


def _read_lines(path: str) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, read_lines(path))


def _is_label(value: Any) -> bool:
    """Returns whether a value is a label, which is neither missing nor empty nor hidden (-1)."""
    return not is_missing(value) and str(value).strip() not in ("", "-1")


def _name_choices(task: RowTask) -> Sequence[str]:
    """Names the choices by their texts, or by number if the texts differ between rows.

    The numbers are those of the template, which also counts blank options.
    """
    if fixed := task.prompt.compiled.fixed_choices:
        return fixed
    sizes = (len(example.choices) + len(_left_out(example)) for _, example in task.examples())
    return [str(number) for number in range(1, max(sizes, default=0) + 1)]


def _left_out(example: Example) -> Sequence[int]:
    """Returns the numbers of the template's blank options, if they are left out, from 0."""
    return () if "" in example.choices else example.blank


def _choice_columns(names: Iterable[str]) -> list[str]:
    return [f"{PROBABILITY}_{name}" for name in names]


def _values(
    task: RowTask, prediction: Mapping[str, Any], choice_columns: Sequence[str]
) -> dict[str, Any]:
    """Returns column -> value, for the columns that are added to the row of a prediction."""
    if not task.prompt.is_ranked:
        return {name: prediction[name] for name in task.added_columns}
    from scipy.special import softmax

    shares = [round(float(share), 6) for share in softmax(prediction["scores"])]
    best = int(np.argmax(prediction["scores"]))
    return {
        PREDICTION: prediction["choices"][best],
        PROBABILITY: shares[best],
        **dict(zip(choice_columns, shares, strict=False)),
    }
