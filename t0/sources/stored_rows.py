"""Stores the rows of a split in a temporary file, so that any row can be read in constant time.

    rows = StoredRows(open_split("super_glue", "rte", "train"))
    len(rows), rows[1234]

The formats of datasets are made to be read from start to end: row 1,234 of a JSON Lines file needs
the 1,233 lines before it. Exemplars of few-shot prompts are drawn at random.
"""

import pickle
import tempfile
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.sources.schema import OwnRow
from t0.sources.splits import SplitRows


class StoredRows:
    """The rows of a split in a file without a name, which disappears with the process.

    Args:
      rows: the split. All its rows are read once.

    Raises:
      UserError: a row cannot be read, or the disk is full.
    """

    def __init__(self, rows: SplitRows) -> None:
        self._hides = rows.hides_labels
        self._own = False
        ends = [0]
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
            for row in rows.rows():
                self._own = isinstance(row, OwnRow)
                self._file.write(pickle.dumps(dict(row), pickle.HIGHEST_PROTOCOL))
                ends.append(self._file.tell())
        except OSError as error:
            raise UserError(
                f"cannot store the rows of {rows.where} in {tempfile.gettempdir()}: {error}. Set "
                "TMPDIR to another folder"
            ) from error
        self._ends = np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        start, end = self._ends[index : index + 2].tolist()
        self._file.seek(start)
        # Only this process can write the file, so it is not untrusted data.
        row = pickle.loads(self._file.read(end - start))
        if self._own:
            row = OwnRow(row)
            row.hides = self._hides
        return row
