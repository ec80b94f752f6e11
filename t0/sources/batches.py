"""Record batches, as Arrow's readers give them, become rows: a range of them, a few at a time.

    list(rows_between(batches, 10, 12))   # rows 10 and 11 of all batches together, as dicts

A column of bytes, which is how some programs write text, is read as text: where it is UTF-8. What
is not stays bytes, and a template that uses it says so (`t0.prompts.render`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from t0.sources.readers import reading

# Rows that are turned into Python values at once: enough to be quick, few enough to be small.
ROWS_AT_ONCE = 512


def guarded(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches; a fault in reading the next one is a UserError that names the file."""
    while True:
        with reading(path, pa.ArrowException):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def rows_between(
    batches: Iterator[pa.RecordBatch], start: int, stop: int | None
) -> Iterator[dict[str, Any]]:
    """Yields the rows from start up to stop, None for the end. Batches after stop are not read."""
    first = 0
    for batch in batches:
        begin = max(start - first, 0)
        end = batch.num_rows if stop is None else min(batch.num_rows, stop - first)
        for offset in range(begin, end, ROWS_AT_ONCE):
            yield from _rows(batch.slice(offset, min(ROWS_AT_ONCE, end - offset)))
        first += batch.num_rows
        if stop is not None and first >= stop:
            return


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = batch.to_pylist()
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if _holds_bytes(kind):
            for row in rows:
                row[name] = _as_text(row[name])
    return rows


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _as_text(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    return value
