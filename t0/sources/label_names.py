"""Reads the names of labels that the `datasets` library stores together with rows.

    read_label_names(SplitFile("parquet", Path("train.parquet")))   # {"label": ("bad", "good")}

The first name belongs to label 0. The names are in the metadata of Parquet and Arrow files, or in
`dataset_info.json` next to the files.
"""

from pathlib import Path
from typing import Any

from t0.errors import UserError, reading
from t0.files.untrusted import parsed_json, read_json
from t0.sources.folders import SplitFile

INFO = "dataset_info.json"


def read_label_names(file: SplitFile) -> dict[str, tuple[str, ...]]:
    """Returns column -> names of the column's labels. If no names are stored, the result is empty.

    Raises:
      UserError: the stored description of the columns cannot be read.
    """
    folder = file.path if file.kind == "saved" else file.path.parent
    if file.kind in ("parquet", "arrow", "saved"):
        from t0.sources.arrow_readers import stored_metadata

        content = stored_metadata(file.kind, file.path).get(b"huggingface")
        if content:
            with reading(file.path, ValueError):
                value = parsed_json(content)
            return _read_names(value.get("info") if isinstance(value, dict) else None, file.path)
    if (folder / INFO).is_file():
        return _read_names(read_json(folder / INFO), folder / INFO)
    return {}


def _read_names(info: Any, path: Path) -> dict[str, tuple[str, ...]]:  # noqa: ANN401 (of a file)
    features = info.get("features") if isinstance(info, dict) else None
    label_names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
            continue
        names = feature.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"{path}: the names of '{column}' must be a list of texts: {names!r:.80}"
            )
        label_names[column] = tuple(names)
    return label_names
