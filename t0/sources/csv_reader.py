"""Rows of csv and tsv files, with types that hold for the whole file.

    a,b          Csv(Path("x.csv")).rows(0, None)
    1,yes        {'a': 1, 'b': 'yes'}
    2,no         {'a': 2, 'b': 'no'}

The first line names the columns; cells with separators, line breaks or quotes stand in double
quotes, in tsv too. For T0's own datasets the types are the recorded ones, and a nested column is
JSON in its cell. Otherwise a column whose cells are all whole numbers, or all numbers, is read as
such (an empty cell is None), and every other column is text exactly as written: dates, true and
false included, since a prompt prints what the file says.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.csv

from t0.errors import UserError
from t0.sources.batches import guarded, rows_between
from t0.sources.known import Features
from t0.sources.readers import reading

# pyarrow reads up to 32 blocks ahead, so a block is small; but it must hold the longest row, so it
# grows when a row does not fit. The first block decides at first which type a column has.
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 1 << 29
_T = TypeVar("_T")
_WIDER = {pa.int64(): pa.float64(), pa.float64(): pa.string()}


class _Scan(NamedTuple):
    types: dict[str, pa.DataType]
    block_bytes: int
    num_rows: int


@dataclasses.dataclass(frozen=True)
class Csv:
    """One csv or tsv file; `.gz` is unpacked on the way."""

    path: Path
    delimiter: str = ","
    known: Features | None = None

    def columns(self) -> tuple[str, ...]:
        """The names in the first line."""
        with reading(self.path, pa.ArrowException):
            names = self._growing(lambda block: self._open({}, block).schema.names)
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise UserError(
                f"{self.path}, line 1: the column names {double} occur twice. Name each column"
                " once."
            )
        return tuple(names)

    def count(self) -> int:
        """The number of rows; the file is read once for it."""
        return self._scan.num_rows

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The rows, with types that do not change within the file.

        Raises:
            UserError: a row has too many or too few cells, or a cell is not of its column's type.
        """
        # The scan comes first: it finds the types, and a fault before any row is handed out.
        scan = self._scan
        with reading(self.path, pa.ArrowException):
            batches = self._open(scan.types, scan.block_bytes)
        return rows_between(guarded(self.path, batches), start, stop)

    @functools.cached_property
    def _scan(self) -> _Scan:
        """Reads the file once to see how many rows there are and which types fit all of them."""
        self.columns()
        with reading(self.path, pa.ArrowException):
            return self._growing(self._scan_with)

    def _scan_with(self, block_bytes: int) -> _Scan:
        types = {name: _known_type(feature) for name, feature in (self.known or {}).items()}
        fixed = frozenset(types)
        # Nothing but empty cells so far: numbers may follow, and text if nothing does.
        empty = set()
        for field in self._open({}, block_bytes).schema:
            if field.name not in fixed and field.type == pa.null():
                empty.add(field.name)
                types[field.name] = pa.int64()
            elif field.name not in fixed:
                types[field.name] = field.type if field.type in _WIDER else pa.string()
        while True:
            num_rows = 0
            try:
                for batch in self._open(types, block_bytes):
                    num_rows += batch.num_rows
                    empty = {n for n in empty if batch.column(n).null_count == batch.num_rows}
                return _Scan(types | dict.fromkeys(empty, pa.string()), block_bytes, num_rows)
            except pa.ArrowInvalid as error:
                column = self._column_of(error)
                if column is None:
                    raise
                if column in fixed and pa.types.is_integer(types[column]):
                    # A copy may spell them 1.0; `t0.sources.values` makes integers of them.
                    types[column] = pa.float64()
                elif column in fixed or types[column] not in _WIDER:
                    raise UserError(f"{self.path}: column '{column}': {error}.") from error
                else:
                    types[column] = _WIDER[types[column]]
                empty.discard(column)

    def _growing(self, ask: Callable[[int], _T]) -> _T:
        """Asks with larger and larger blocks until the longest row fits into one."""
        block_bytes = _BLOCK_BYTES
        while True:
            try:
                return ask(block_bytes)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error) or block_bytes >= _MAX_BLOCK_BYTES:
                    raise
                block_bytes *= 8

    def _column_of(self, error: pa.ArrowInvalid) -> str | None:
        """Returns the column that a failed conversion was in: the message counts them from 0."""
        prefix = "In CSV column #"
        if not str(error).startswith(prefix):
            return None
        return self.columns()[int(str(error)[len(prefix) :].partition(":")[0])]

    def _open(
        self, types: dict[str, pa.DataType], block_bytes: int
    ) -> pyarrow.csv.CSVStreamingReader:
        return pyarrow.csv.open_csv(
            pa.input_stream(str(self.path)),  # unpacks .gz
            # One thread: messages then name the row, and a fork finds no thread pool half-way.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=block_bytes),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True
            ),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types),
        )


def _known_type(feature: Any) -> pa.DataType:  # noqa: ANN401
    """The type of a cell; text where `t0.sources.values` makes the value of it."""
    if isinstance(feature, dict) and feature.get("_type") == "Value":
        return pa.type_for_alias(feature["dtype"])
    return pa.string()
