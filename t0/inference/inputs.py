"""Reads inputs from the lines of a file, and makes batches of similar length, for any engine.

`t0.inference.task_inputs` (SeqIO) and `t0.inference.cached_inputs` (files of a cache) read the
examples of a task.

Legend: B examples, L input tokens, T target tokens.

    source = open_file("questions.txt", vocabulary, add_eos=False)
    source.total                     # 3: `open_file` reads and checks the whole file once
    next(source.read(0, 1))          # InferenceExample(0, "Who wrote it?", None, [363, 42, ...])

Each call of `read` starts again at the first example, and yields the examples in the same order.

    for number, window in windows(source.read(0, 1), 1024):
        for batch in batches(window, LengthLimits(512, 64), batch_size=32, method=method, seed=0):
            ids, scores = model.generate(batch.inputs, batch.limits, batch.draws)

The stream of examples is divided into windows. The examples of a window are sorted by length and
divided into batches of B, which are padded to one of a few lengths. This keeps padding low and the
number of lowered shapes small. The batches depend only on the order of the examples, so a resumed
run makes the same batches.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from t0.caching.row_numbers import ExampleRows
from t0.errors import UserError, reading, unknown_name
from t0.evaluation.model import DecodingMethod
from t0.files import paths
from t0.files.any_path import any_path, limited_lines, unpacked
from t0.sources.json_lines import parsed_line, read_document, rows_of_document, without_bad_rows

_T = TypeVar("_T")

EOS = 1
# A score that is less than any sum of log-probabilities.
NEVER = -1e9

# The number of batches in a window. In a larger window, the lengths within a batch are more
# similar.
WINDOW = 32
_SHORTEST = 16

_JSON = (".jsonl", ".json")
FIELDS = ("inputs", "targets")


@dataclasses.dataclass(frozen=True)
class InferenceExample:
    """One input, and its target if the target is known.

    Attributes:
      number: the example's number in the order of the task or file, from 0.
      inputs: the input's text.
      targets: the target's text, or None if it is unknown.
      tokens: all tokens of the input.
      row: the number of the dataset's row; None if it is unknown, or if the number is the row.
    """

    number: int
    inputs: str
    targets: str | None
    tokens: Sequence[int]
    row: int | None = None


@dataclasses.dataclass(frozen=True)
class InputSource:
    """A source of examples.

    Attributes:
      name: the name of the task, or of the file without its extension.
      total: the number of examples; None if it is unknown until the examples are read.
      facts: the facts about the examples for the summary file.
      read: a function of (shard, number of shards) that yields the examples of the shard.
      origin: the arguments from which another process can open the same source.
      rows: a function that finds the rows of the examples in the dataset; None if they are unknown.
      sample: the size of a random sample of the rows; None for all examples.
    """

    name: str
    total: int | None
    facts: dict[str, Any]
    read: Callable[[int, int], Iterator[InferenceExample]]
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: Callable[[], ExampleRows] | None = None
    sample: int | None = None


def answer_choices_error(task: str) -> UserError:
    """Returns the error for a task whose records are answer choices, which inference cannot use."""
    return UserError(
        f"task {task} is for rank evaluation: its records are answer choices. Its other form, if "
        f"it has one, is {task.removesuffix('_score_eval')}"
    )


def open_file(path: str, vocabulary: Any, *, add_eos: bool, repeats: int = 1) -> InputSource:
    """Opens a file of inputs, in a format that `InferenceSettings.input_file` describes.

    Args:
      path: the file, local or `gs://`.
      vocabulary: the vocabulary of the inputs.
      add_eos: whether to append EOS to each input.
      repeats: the number of consecutive copies of each input.

    Raises:
      UserError: if the file is missing or empty, or a line is malformed.
    """
    if not paths.exists(path) or paths.is_folder(path):
        raise UserError(f"input file not found: {path} (infer.input_file)")
    name = posixpath.basename(path).removesuffix(".gz")
    parse, lines = _text_input, _text_lines
    if name.endswith(_JSON):
        parse, lines = _json_input, _json_lines
    digest = hashlib.sha256()
    total = 0
    for where, line in lines(path):
        digest.update(line + b"\n")
        parse(where, line)
        total += 1
    if not total:
        raise UserError(f"input file {path} is empty: expected one input per line")

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        for index, (where, line) in enumerate(lines(path)):
            copies = range(index * repeats, (index + 1) * repeats)
            numbers = [n for n in copies if n % shards == shard]
            if not numbers:
                continue
            inputs, targets = parse(where, line)
            tokens = [*vocabulary.encode(inputs), *([vocabulary.eos_id] if add_eos else [])]
            yield from (InferenceExample(n, inputs, targets, tokens) for n in numbers)

    facts = {"input_file_sha256": digest.hexdigest(), "add_eos": add_eos, "repeats": repeats}
    origin = {"input_file": path, "add_eos": add_eos, "repeats": repeats}
    return InputSource(name.rpartition(".")[0] or name, total * repeats, facts, read, origin)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines, numbered from 1, without line endings and trailing blank lines."""
    blank = 0
    with contextlib.ExitStack() as stack:
        with reading(path):
            file = stack.enter_context(unpacked(any_path(path)))
            lines = enumerate(limited_lines(file, path), start=1)
        while True:
            with reading(path):
                number, line = next(lines, (0, b""))
            if not number:
                return
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            line = line.rstrip(b"\r\n")
            if not line.strip():
                blank += 1
                continue
            yield from ((n, b"") for n in range(number - blank, number))
            blank = 0
            yield number, line


def _text_lines(path: str) -> Iterator[tuple[str, bytes]]:
    return ((f"{path}, line {number}", line) for number, line in _lines(path))


def _json_lines(path: str) -> Iterator[tuple[str, bytes]]:
    """Yields (file and line for messages, JSON text) for each row.

    A row is a line of JSON Lines or, if the file is a single JSON document, a row in the document.
    """
    document = read_document(any_path(path))
    if document is None:
        lines = without_bad_rows(_lines(path), path)
        yield from ((f"{path}, line {number}", line) for number, line in lines if line)
        return
    for number, row in without_bad_rows(enumerate(rows_of_document(document, path)), path):
        yield f"{path}, row {number} (the first is 0)", json.dumps(row).encode()


def _text_input(where: str, line: bytes) -> tuple[str, None]:
    try:
        return line.decode("utf-8").strip(), None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error})") from error


def _json_input(where: str, line: bytes) -> tuple[str, str | None]:
    row = parsed_line(where, line)
    for name, value in row.items():
        if name not in FIELDS:
            raise unknown_name("field", name, FIELDS, f"({where}; expected {_expected_fields()})")
        if not isinstance(value, str) and not (name == "targets" and value is None):
            raise UserError(f"{where}: '{name}' is {json.dumps(value)[:60]}; expected a text")
    if "inputs" not in row:
        raise UserError(f"{where}: there is no 'inputs'; expected {_expected_fields()}")
    return row["inputs"], row.get("targets")


def _expected_fields() -> str:
    return (
        '{"inputs": "..."}, and "targets" where they are known. For rows with other columns: '
        "t0 predict"
    )


@dataclasses.dataclass(frozen=True)
class LengthLimits:
    """The maximum number of tokens of an input and of a prediction.

    Attributes:
      inputs: the maximum for inputs. Longer inputs are truncated, but keep an EOS at their end.
      targets: the maximum for predictions, including EOS.
      targets_per_input: (multiplier, constant) of a second limit for predictions: the number of
        tokens of the input, times the multiplier, plus the constant. None if there is no second
        limit.
    """

    inputs: int
    targets: int
    targets_per_input: tuple[float, float] | None = None

    def truncate(self, tokens: Sequence[int]) -> Sequence[int]:
        """Returns an input's tokens, truncated to the limit."""
        if len(tokens) <= self.inputs:
            return tokens
        return [*tokens[: self.inputs - 1], EOS if tokens[-1] == EOS else tokens[self.inputs - 1]]

    def limit_prediction(self, tokens: Sequence[int]) -> int:
        """Returns the maximum number of tokens to predict for an input."""
        if self.targets_per_input is None:
            return self.targets
        multiplier, constant = self.targets_per_input
        return min(self.targets, max(1, int(len(tokens) * multiplier + constant)))


@dataclasses.dataclass(frozen=True)
class InputBatch:
    """A padded batch of a window.

    Attributes:
      inputs: int32 [B, L], 0 is padding.
      limits: int32 [B], the maximum number of tokens to predict for each row; 0 for a padding row.
      draws: float32 [B, T], random numbers for sampling; zeros without sampling.
      places: for each of the first rows, the index of its example in the window. All other rows are
        padding.
    """

    inputs: np.ndarray
    limits: np.ndarray
    draws: np.ndarray
    places: tuple[int, ...]


def windows(
    examples: Iterable[InferenceExample], size: int
) -> Iterator[tuple[int, tuple[InferenceExample, ...]]]:
    """Divides examples into windows of `size`, and yields (number of the window from 0, window)."""
    return enumerate(_in_groups(examples, size))


def batches(
    window: Sequence[InferenceExample],
    limits: LengthLimits,
    *,
    batch_size: int,
    method: DecodingMethod,
    seed: int,
) -> Iterator[InputBatch]:
    """Yields the batches of a window, short inputs first.

    Args:
      window: the examples.
      limits: the length limits.
      batch_size: B, the same for all batches.
      method: the method by which tokens are chosen.
      seed: the seed of the random numbers for sampling.
    """
    truncated = [limits.truncate(example.tokens) for example in window]
    order = sorted(range(len(window)), key=lambda position: (len(truncated[position]), position))
    for places in _in_groups(order, batch_size):
        longest = max(len(truncated[position]) for position in places)
        inputs = np.zeros((batch_size, padded_length(longest, limits.inputs)), np.int32)
        token_limits = np.zeros(batch_size, np.int32)
        draws = np.zeros((batch_size, limits.targets), np.float32)
        for row, position in enumerate(places):
            inputs[row, : len(truncated[position])] = truncated[position]
            token_limits[row] = limits.limit_prediction(truncated[position])
            if method.temperature:
                draws[row] = draw_uniform(seed, window[position].number, limits.targets)
        yield InputBatch(inputs, token_limits, draws, places)


def padded_length(tokens: int, limit: int) -> int:
    """Returns the smallest of 16, 24, 32, 48, 64, 96 ... that fits an input; at most the limit.

    >>> [padded_length(tokens, 512) for tokens in (0, 17, 33, 65, 400)]
    [16, 24, 48, 96, 512]
    """
    length = _SHORTEST
    while length < tokens:
        # The lengths are the powers of two, and 1.5 times each power of two.
        length = length * 3 // 2 if length & (length - 1) == 0 else length // 3 * 4
    return min(length, limit)


def draw_uniform(seed: int, number: int, count: int) -> np.ndarray:
    """Returns uniform random numbers in [0, 1) for an example, float32 [count]."""
    stream = np.random.Generator(np.random.Philox(key=[seed, number]))
    return stream.random(count, dtype=np.float32)


def _in_groups(things: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    stream = iter(things)
    while group := tuple(itertools.islice(stream, size)):
        yield group
