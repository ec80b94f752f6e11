"""What predictions are made for: the examples of a task, or the lines of a file.

    examples = of_file("questions.txt", vocabulary, add_eos=False)
    examples.total                              # 3: the file is looked through once, and checked
    next(examples.read())                       # Example(0, "Who wrote it?", None, (363, 42, ...))

Both are read anew by each `read()`, from the start and in the same order, one example at a time.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError, original, unknown_name
from t0.sources.readers import parsed_line, reading

_JSON = (".jsonl", ".json")
_FIELDS = ("inputs", "targets")
_READ = (*_FIELDS, *(f"{name}_pretokenized" for name in _FIELDS), "is_correct")


@dataclasses.dataclass(frozen=True)
class Example:
    """One input.

    Attributes:
      number: from 0, in the order of the task or file.
      inputs: its text.
      targets: the text that is known to be right, or None.
      tokens: of the input, whole.
    """

    number: int
    inputs: str
    targets: str | None
    tokens: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Examples:
    """A source of examples.

    Attributes:
      name: of the task, or of the file without its ending.
      total: how many there are, None if that is not known before they are read.
      facts: what they are, for the record.
      read: (shard, of so many shards) -> the examples of this shard.
    """

    name: str
    total: int | None
    facts: dict[str, Any]
    read: Callable[[int, int], Iterator[Example]]


def of_task(task: seqio.Task, split: str, *, use_cached: bool) -> Examples:
    """Returns the examples of a task's split.

    Raises:
      UserError: if the task has no such split, or is one for rank evaluation.
    """
    if split not in task.splits:
        raise UserError(
            f"task {task.name} has no split '{split}'; there are: {', '.join(task.splits)} "
            "(infer.split)"
        )

    def records() -> tf.data.Dataset:
        dataset = task.get_dataset(None, split, use_cached=use_cached, shuffle=False)
        kept = [name for name in _READ if name in dataset.element_spec]
        if "is_correct" in dataset.element_spec:
            raise UserError(
                f"task {task.name} is for rank evaluation: its records are answer choices. Its "
                f"other form, if it has one, is {task.name.removesuffix('_score_eval')}"
            )
        return dataset.map(lambda record: {name: record[name] for name in kept})

    def read(shard: int, shards: int) -> Iterator[Example]:
        # Numbered before they are dealt out: an example's draws do not depend on its shard.
        for number, record in _numpy(lambda: records().enumerate().shard(shards, shard)):
            yield _of_record(int(number), record, task.output_features)

    facts = {"task": task.name, "split": split}
    return Examples(task.name, task.num_input_examples(split), facts, read)


def _numpy(make: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yields a dataset's elements from a graph and session that are nobody's default meanwhile."""
    try:
        with tf.Graph().as_default() as graph:
            iterator = tf.data.make_initializable_iterator(make())
            following, ready = iterator.get_next(), [iterator.initializer, tf.tables_initializer()]
        with contextlib.closing(tf.Session(graph=graph)) as session:
            session.run(ready)
            while True:
                try:
                    element = session.run(following)
                except tf.errors.OutOfRangeError:
                    return
                yield element
    except tf.errors.OpError as error:
        raise original(error) from error


def _of_record(number: int, record: dict[str, Any], features: dict[str, Any]) -> Example:
    texts = [_text(record, name, features) for name in _FIELDS]
    return Example(number, texts[0] or "", texts[1], record["inputs"].tolist())


def _text(record: dict[str, Any], name: str, features: dict[str, Any]) -> str | None:
    given = record.get(f"{name}_pretokenized")
    if isinstance(given, bytes):
        return given.decode("utf-8", "replace")
    if name not in record:
        return None
    return features[name].vocabulary.decode(record[name].tolist())


def of_file(path: str, vocabulary: Any, *, add_eos: bool, repeats: int = 1) -> Examples:
    """Returns the inputs of a file; see `t0.inference.settings` for what it may be.

    Args:
      path: of the file, local or `gs://`.
      vocabulary: of the inputs.
      add_eos: whether EOS ends each input.
      repeats: how often each input stands in the result, one after the other.

    Raises:
      UserError: if there is no such file, it is empty, or a line is not what it must be.
    """
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise UserError(f"input file not found: {path} (infer.input_file)")
    name = posixpath.basename(path).removesuffix(".gz")
    parse, lines = _text_input, _lines
    if name.endswith(_JSON):
        parse, lines = _json_input, _lines_with_text
    digest = hashlib.sha256()
    total = 0
    for number, line in lines(path):
        digest.update(line + b"\n")
        parse(f"{path}, line {number}", line)
        total += 1
    if not total:
        raise UserError(f"input file {path} is empty: wanted an input a line")

    def read(shard: int, shards: int) -> Iterator[Example]:
        for index, (number, line) in enumerate(lines(path)):
            copies = range(index * repeats, (index + 1) * repeats)
            taken = [n for n in copies if n % shards == shard]
            if not taken:
                continue
            inputs, targets = parse(f"{path}, line {number}", line)
            tokens = [*vocabulary.encode(inputs), *([vocabulary.eos_id] if add_eos else [])]
            yield from (Example(n, inputs, targets, tokens) for n in taken)

    facts = {"input_file_sha256": digest.hexdigest(), "add_eos": add_eos, "repeats": repeats}
    return Examples(name.rpartition(".")[0] or name, total * repeats, facts, read)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines, numbered from 1, without their ends; blank ones at the end are none."""
    blank = 0
    with contextlib.ExitStack() as stack:
        with reading(path, tf.errors.OpError):
            file = stack.enter_context(tf.io.gfile.GFile(path, "rb"))
            if path.endswith(".gz"):
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            lines = enumerate(file, start=1)
        while True:
            with reading(path, tf.errors.OpError):
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


def _lines_with_text(path: str) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in _lines(path) if line)


def _text_input(where: str, line: bytes) -> tuple[str, None]:
    try:
        return line.decode("utf-8").strip(), None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error})") from error


def _json_input(where: str, line: bytes) -> tuple[str, str | None]:
    row = parsed_line(where, line)
    for name, value in row.items():
        if name not in _FIELDS:
            raise unknown_name("field", name, _FIELDS, f"({where}; wanted {_wanted()})")
        if not isinstance(value, str) and not (name == "targets" and value is None):
            raise UserError(f"{where}: '{name}' is {json.dumps(value)[:60]}; wanted a text")
    if "inputs" not in row:
        raise UserError(f"{where}: there is no 'inputs'; wanted {_wanted()}")
    return row["inputs"], row.get("targets")


def _wanted() -> str:
    return '{"inputs": "..."}, and "targets" where they are known'
