"""Describes T0's datasets (split sizes, columns, withheld labels) and converts later copies.

    split_sizes("super_glue", "cb")   # {'test': 250, 'train': 250, 'validation': 56}
    features("super_glue", "cb")["label"]["names"]
    # ['entailment', 'contradiction', 'neutral']

    # The columns of a copy of 2022:
    view = row_view("trec", None, ("text", "coarse_label", "fine_label"))
    view.columns                      # ('label-coarse', 'label-fine', 'text')
    view.row({"text": "How ?", "coarse_label": 2, "fine_label": 26})
    # {'label-coarse': 0, 'label-fine': 0, 'text': 'How ?'}

    hidden_label("super_glue", {"premise": "...", "label": -1})   # True
    # In a user's own data, -1 is a class if the split also has other labels (`OwnRow`).

The folder `facts/` records the number of raw rows in each split, and the columns in the notation of
the `datasets` library, as of October 2021, when T0 was trained. The files in `facts/` are read when
they are first needed. In a later copy of a dataset, the names of columns, the order of labels and
the spelling of values may differ. A `RowView` converts the copy's rows to the recorded columns:

* Class labels and integer columns become integers, whether the copy has 1, 1.0 or "1". A class
  label of -1 means that the label is withheld. In boolean columns, "true" and "False" become
  booleans. In text columns, numbers become text. In all of these columns, NaN becomes None, because
  pandas writes NaN for missing values.
* A sequence of records becomes one dict of lists, as in rows of the `datasets` library. A nested
  value in a text file is parsed as JSON.
* Other values are unchanged.

Rows of datasets that T0 does not use are not converted.
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Callable
from typing import Any

from t0.errors import unknown_name
from t0.files.untrusted import parsed_json
from t0.prompts import is_missing, whole_number

DEFAULT_SUBSET = "default"

# Column name -> its type, in the notation of the `datasets` library.
Features = dict[str, Any]


def split_sizes(dataset: str, subset: str | None = None) -> dict[str, int]:
    """Returns the number of raw rows in each split of one of T0's datasets.

    Raises:
      UserError: the dataset or the subset is not one of T0's.
    """
    sizes, name = _facts("splits"), subset or DEFAULT_SUBSET
    if name not in sizes.get(dataset, ()):
        names = [f"{other}/{subset}" for other, subsets in sizes.items() for subset in subsets]
        hint = f"Its subsets: {', '.join(sizes[dataset])}." if dataset in sizes else ""
        raise unknown_name("dataset of T0", f"{dataset}/{name}", names, hint)
    return dict(sizes[dataset][name])


def features(dataset: str, subset: str | None = None) -> Features | None:
    """Returns the columns of one of T0's datasets, or None for any other dataset.

    The value of a column is in the notation of the `datasets` library: `{"dtype": "string",
    "_type": "Value"}`, `{"names": [...], "_type": "ClassLabel"}`, `{"feature": ..., "_type":
    "Sequence"}`, or a dict or list for a nested column. Callers share the result and must not
    change it.
    """
    entry = _facts("features").get(dataset, {}).get(subset or DEFAULT_SUBSET)
    return entry and entry["features"]


@functools.cache
def _facts(name: str) -> dict[str, Any]:
    file = importlib.resources.files("t0.sources").joinpath("facts", f"{name}.json")
    return json.loads(file.read_text(encoding="utf-8"))


Converter = Callable[[Any], Any]


def converter(feature: Any) -> Converter | None:  # noqa: ANN401
    """Returns a function that converts a column's values; None if they need no conversion.

    If a value is invalid, the returned function raises ValueError with a message for the user.
    """
    kind = _kind(feature)
    if kind == "ClassLabel":
        return functools.partial(_class_label, names=tuple(feature["names"]))
    if kind == "Value":
        if feature["dtype"] == "string":
            return _text
        if feature["dtype"] == "bool":
            return _truth
        return _integer if "int" in feature["dtype"] else None
    inner = _nested(feature)
    return functools.partial(_parsed, convert=inner) if inner else None


def _kind(feature: Any) -> str:  # noqa: ANN401
    """Returns the kind of a column: "Value", "ClassLabel", "Sequence", "dict" or "list".

    A dict of nested columns may have a column named `_type`. The value of this `_type` is then not
    the name of a kind.
    """
    if isinstance(feature, list):
        return "list"
    kind = feature.get("_type")
    if isinstance(kind, str):
        return "Sequence" if kind == "List" else kind
    return "dict"


def _nested(feature: Any) -> Converter | None:  # noqa: ANN401
    """Returns a function that converts the values of a column.

    For a nested column, the result is never None.
    """
    kind = _kind(feature)
    if kind == "ClassLabel":
        return converter(feature)
    if kind == "dict":
        return functools.partial(_dict, convert={k: _nested(v) for k, v in feature.items()})
    if kind == "list":
        return functools.partial(_list, convert=_nested(feature[0]))
    if kind == "Sequence" and _kind(feature["feature"]) == "dict":
        fields = {name: _nested(item) for name, item in feature["feature"].items()}
        return functools.partial(_dict_of_lists, convert=fields)
    if kind == "Sequence":
        return functools.partial(_list, convert=_nested(feature["feature"]))
    return None


def _class_label(value: Any, *, names: tuple[str, ...]) -> int | None:  # noqa: ANN401
    if is_missing(value):
        return None
    # Read the value as a name first, because boolq's labels have the names "False" and "True". If
    # the names are "0" and "1", reading the value as a name or as a number gives the same label.
    if isinstance(value, str | bool) and str(value) in names:
        return names.index(str(value))
    number = whole_number(value)
    if number is None or not -1 <= number < len(names):
        listed = ", ".join(f"{i}={name}" for i, name in enumerate(names[:60]))
        raise ValueError(f"{value!r} is not a class label; labels are {listed} (-1: withheld)")
    return number


def _integer(value: Any) -> int | None:  # noqa: ANN401
    if type(value) is int or is_missing(value):
        return value if type(value) is int else None
    number = whole_number(value)
    if number is None:
        raise ValueError(f"{value!r} is no whole number")
    return number


def _truth(value: Any) -> bool | None:  # noqa: ANN401
    if isinstance(value, bool) or is_missing(value):
        return value if isinstance(value, bool) else None
    truth = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if truth is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return truth


def _text(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = whole_number(value)
        return None if is_missing(value) else str(value if number is None else number)
    return value


def _parsed(value: Any, *, convert: Converter) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        try:
            value = parsed_json(value)
        except ValueError as error:
            raise ValueError(
                f"{value[:80]!r} is not JSON, which a text file needs for a nested column ({error})"
            ) from error
    return convert(value)


def _dict(value: Any, *, convert: dict[str, Converter | None]) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    return {key: _apply(convert.get(key), item) for key, item in value.items()}


def _list(value: Any, *, convert: Converter | None) -> Any:  # noqa: ANN401
    if not isinstance(value, list) or convert is None:
        return value
    return [convert(item) for item in value]


def _dict_of_lists(value: Any, *, convert: dict[str, Converter | None]) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        value = {name: [(item or {}).get(name) for item in value] for name in convert}
    if not isinstance(value, dict):
        return value
    return {name: _list(items, convert=convert.get(name)) for name, items in value.items()}


def _apply(convert: Converter | None, value: Any) -> Any:  # noqa: ANN401
    return value if convert is None else convert(value)


_TREC_COARSE = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
_TREC_FINE_BY_COARSE = {
    "ABBR": "abb exp",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant"
    " product religion sport substance symbol techmeth termeq veh word",
    "DESC": "def desc manner reason",
    "HUM": "gr ind title desc",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other period perc speed temp volsize weight",
}
_TREC_FINE = tuple(
    f"{coarse}:{fine}" for coarse, names in _TREC_FINE_BY_COARSE.items() for fine in names.split()
)


@dataclasses.dataclass(frozen=True)
class Drift:
    """A difference between a later copy of a dataset and the dataset that T0 used.

    Attributes:
      dataset: the dataset that T0 used.
      subset: the subset that T0 used.
      found_as: the dataset and subset of the copy.
      columns: the copy's name of a column -> T0's name. Data with the copy's names is recognized as
        this copy.
      label_names: T0's name of a column -> the copy's label names, for the columns in which the
        copy's labels have a different order.
    """

    dataset: str
    subset: str | None
    found_as: tuple[str, str | None]
    columns: dict[str, str]
    label_names: dict[str, tuple[str, ...]]


DRIFTS = (
    # The hub re-ordered and renamed the labels in 2022: 50 fine ones, each with its coarse one
    # before a colon, where there were 47 (desc and other were one class across coarse ones).
    Drift(
        dataset="trec",
        subset=None,
        found_as=("trec", None),
        columns={"coarse_label": "label-coarse", "fine_label": "label-fine", "text": "text"},
        label_names={"label-coarse": _TREC_COARSE, "label-fine": _TREC_FINE},
    ),
    # The same rows, order and labels (0: entailment) in both benchmarks; 6 of the 277 validation
    # rows differ in quotation marks.
    Drift(
        dataset="super_glue",
        subset="rte",
        found_as=("glue", "rte"),
        columns={"sentence1": "premise", "sentence2": "hypothesis", "idx": "idx", "label": "label"},
        label_names={},
    ),
)


@dataclasses.dataclass(frozen=True)
class RowView:
    """Converts stored rows to rows with T0's columns.

    Attributes:
      columns: the columns of the converted rows, in order.
      stored: the names of these columns in the stored rows.
      converters: column -> the functions to apply to its values, in order. Columns whose values
        need no conversion are left out.
      needed: T0's columns of the dataset; empty for the user's own datasets.
    """

    columns: tuple[str, ...]
    stored: tuple[str, ...]
    converters: dict[str, tuple[Converter, ...]]
    needed: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """T0's columns that the stored rows do not have."""
        return tuple(name for name in self.needed if name not in self.columns)

    def row(self, stored_row: dict[str, Any]) -> dict[str, Any]:
        """Converts a stored row to T0's columns.

        Raises:
          ValueError: a value is invalid. The message names the column.
        """
        if self.columns != self.stored:
            stored_row = {
                name: stored_row[old] for name, old in zip(self.columns, self.stored, strict=True)
            }
        for name, steps in self.converters.items():
            for step in steps:
                try:
                    stored_row[name] = step(stored_row[name])
                except ValueError as error:
                    raise ValueError(f"column '{name}': {error}") from error
        return stored_row


def row_view(dataset: str, subset: str | None, stored: tuple[str, ...]) -> RowView:
    """Returns the view that converts rows with the columns `stored` to rows with T0's columns."""
    t0_features = features(dataset, subset) or {}
    drift = next(
        (d for d in _drifts(dataset, subset) if set(d.columns) - set(t0_features) <= set(stored)),
        None,
    )
    if drift is None:
        columns, labels = stored, {}
    else:
        back = {new: old for old, new in drift.columns.items()}
        columns = tuple(name for name in t0_features if back.get(name) in stored)
        stored, labels = tuple(back[name] for name in columns), drift.label_names
    converters = {}
    for name in columns:
        steps = [functools.partial(_name_of, names=labels[name])] if name in labels else []
        if name in t0_features and (convert := converter(t0_features[name])):
            steps.append(convert)
        if steps:
            converters[name] = tuple(steps)
    return RowView(columns, stored, converters, tuple(t0_features))


def other_names(dataset: str, subset: str | None) -> list[tuple[str, str | None]]:
    """Returns other names (dataset, subset) of a dataset, in the order in which to try them."""
    return [d.found_as for d in _drifts(dataset, subset) if d.found_as != (dataset, subset)]


def _drifts(dataset: str, subset: str | None) -> list[Drift]:
    return [d for d in DRIFTS if (d.dataset, d.subset) == (dataset, subset)]


def _name_of(value: Any, *, names: tuple[str, ...]) -> Any:  # noqa: ANN401
    """Returns T0's name of a label in a copy.

    In the copy, the label may be a number or a name such as NUM:dist.
    """
    if isinstance(value, int) and 0 <= value < len(names):
        value = names[value]
    elif isinstance(value, int) and value != -1:
        raise ValueError(f"{value} is not a class label: expected 0 to {len(names) - 1}, or -1")
    return value.rpartition(":")[2] if isinstance(value, str) else value


WITHHELD = (-1, "-1", "-1.0", "", None)


def is_withheld(value: object) -> bool:
    """Returns whether a label of one of T0's datasets is withheld: -1, empty or None."""
    return not isinstance(value, list | dict) and (value in WITHHELD or is_missing(value))


def _no_text(value: Any) -> bool:  # noqa: ANN401
    """Returns whether all answers are missing or empty.

    In a dict of lists, only the values of `text` are answers.
    """
    texts = value.get("text", []) if isinstance(value, dict) else value
    return not any(texts or [])


def _no_output(value: Any) -> bool:  # noqa: ANN401
    return not any(item.get("answer") for item in value or [])


def _no_value(value: Any) -> bool:  # noqa: ANN401
    return (value or {}).get("value") in ("<unk>", "", None)


# Dataset whose label is not in the column `label` -> (column of the label, test for a withheld
# label). The test `_no_text` is only correct if every row of a labelled split has an answer. In
# squad_v2 and duorc, an empty answer is a valid answer.
_OTHER_COLUMNS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "winogrande": ("answer", is_withheld),
    "common_gen": ("target", is_withheld),
    "qasc": ("answerKey", is_withheld),
    "ai2_arc": ("answerKey", is_withheld),
    "openbookqa": ("answerKey", is_withheld),
    "quartz": ("answerKey", is_withheld),
    "story_cloze": ("answer_right_ending", is_withheld),
    "trec": ("label-coarse", is_withheld),
    "super_glue": ("answers", _no_text),  # for the subset record; other subsets have `label`
    "ropes": ("answers", _no_text),
    "adversarial_qa": ("answers", _no_text),
    "kilt_tasks": ("output", _no_output),
    "trivia_qa": ("answer", _no_value),
}


class OwnRow(dict[str, Any]):
    """A row of a dataset that is not one of T0's.

    Attributes:
      hides: a function that takes a column's name and returns whether -1 means that a label in this
        column is withheld. This is the case if -1 is the column's only label in the row's split.
        Otherwise -1 is a class.
    """

    hides: Callable[[str], bool]


def hidden_label(dataset: str, row: dict[str, Any]) -> bool:
    """Returns whether the label of a row is withheld.

    A withheld label is empty or None, or it is -1 and -1 is not a class.

    Args:
      dataset: the dataset's name. It determines the label's column if the dataset is in T0's
        tables. In other datasets, the label is in the column `label`.
      row: a raw row, as yielded by `SplitRows.rows`.
    """
    if isinstance(row, OwnRow):
        value = row.get("label") if "label" in row else 0
        return is_withheld(value) and (whole_number(value) != -1 or row.hides("label"))
    column, is_hidden = _OTHER_COLUMNS.get(dataset, ("label", is_withheld))
    if column in row:
        return is_hidden(row[column])
    return "label" in row and is_withheld(row["label"])
