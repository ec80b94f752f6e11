"""Renders rows with templates: promptsource 0.1.0's output, but each template is compiled once.

    prompt = CompiledTemplate(template, seed_name="super_glue_rte_can_we_infer")
    prompt.apply(row)      # ["Suppose It rains. Can we infer ...?", "Yes"], as promptsource's apply
    prompt.choices(row)    # ["Yes", "No"], as promptsource's get_answer_choices_list
    prompt.example(row)    # Example(inputs=..., targets="Yes", choices=["Yes", "No"]), T0's rule

All templates share one Jinja environment. Promptsource adds the global `zip` and the filters
`choice`, `most_frequent` and `highlight` to Jinja's own; nothing else is added here. Where
promptsource and this differ:

* Jinja runs in its sandbox, so a template file from elsewhere cannot reach into the interpreter.
* Chance is repeatable. The filters `choice` and `random` draw from one stream for each row, seeded
  by `seed_name` and the row's index; `lipsum`, which can only draw from Python's shared stream, is
  gone. The order in the stream: the answer choices first, then the body from left to right, only in
  branches that are taken; `choices` and `apply` of one row agree. Promptsource draws while it
  compiles where the sequence is a constant, and anew in each call.
* Errors are UserErrors that name the template and the row.
* In templates of the user's own a label `1.0` or `"1"` is the integer 1 where it picks a choice,
  and one that picks none is an error, where promptsource prints nothing (`_read_labels`).
* A column of bytes is an error, where promptsource prints `b'...'`.

Assumes that a row is a mapping with text keys. A template is free to change lists inside the row
(`{{ words.append("x") }}`), as in promptsource.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jinja2
from jinja2 import meta, nodes, sandbox

from t0.errors import UserError
from t0.prompts.templates import Template

STREAM = "\0stream"
"""The name under which a `random.Random` is passed: no Jinja identifier, so no column hides it."""

_RANDOM_FILTERS = ("choice", "random")
_INDEX_FILTER = "\0index"  # no name that a template could write


@jinja2.pass_context
def _choice(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item. Taking the context keeps Jinja from drawing at compile time, once for all."""
    if not len(items):
        raise IndexError("'choice' got an empty sequence or a column that the row lacks")
    return context[STREAM].choice(items)


@jinja2.pass_context
def _random(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item, or nothing from an empty sequence, as Jinja's own filter of this name."""
    if not len(items):
        return context.environment.undefined("No random item, sequence was empty.")
    return context[STREAM].choice(items)


def _most_frequent(items: Sequence[Any]) -> list[Any] | None:
    """Returns the items that occur most often, in order of first occurrence."""
    if not items:
        return None
    counts = Counter(items)
    most = max(counts.values())
    return [item for item, count in counts.items() if count == most]


def _highlight(text: str) -> str:
    return "<span style='color: #F08080'>" + text + "</span>"


def whole_number(value: Any) -> int | None:
    """Returns the integer that a value means: of 1, 1.0, "1" and "1.0" it is 1; else None.

    >>> [whole_number(value) for value in (True, 2.0, "3", " 4.0 ", 0.5, float("nan"), "yes", None)]
    [1, 2, 3, 4, None, None, None, None]
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        if not isinstance(value, str):
            return None
        try:
            number = float(value)
        except ValueError:
            return None
        return int(number) if number.is_integer() else None
    return number if isinstance(value, str) or number == value else None


def is_missing(value: Any) -> bool:
    """Returns whether a value is missing: None, an empty text, NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _index(value: Any, items: Any, column: str, of_choices: bool) -> Any:
    """Returns what to subscript `items` with, where a template says `items[value]`.

    Args:
      column: what the template calls the value.
      of_choices: `items` are alternatives of which a label must pick one.

    Raises:
      UserError: a label picks none of the choices.
    """
    if isinstance(value, jinja2.Undefined) or is_missing(value):
        return value
    number = whole_number(value)
    if isinstance(items, Mapping):
        keys = () if number is None or value in items else (number, str(number))
        return next((key for key in keys if key in items), value)
    if not isinstance(items, list | tuple):
        return value
    # -1 is a withheld label, which picks the last choice in promptsource; it is counted elsewhere.
    if of_choices and (number is None or not -1 <= number < len(items)):
        listed = ", ".join(f"{i} is {item!r}" for i, item in enumerate(items[:20]))
        raise UserError(
            f"column '{column}' is {value!r}, which picks none of the {len(items)} choices "
            f"({listed}); write the label's number, or null where there is none"
        )
    return value if number is None else number


def _read_labels(tree: nodes.Template) -> None:
    """Makes the subscripts of a parsed template read labels as what they mean.

    Lists are subscripted with the whole number that a float or a text means; a value that picks no
    answer choice, or none of a list in the template itself, is a UserError that names its column.
    """
    literals = (nodes.List, nodes.Tuple)
    for node in list(tree.find_all(nodes.Getitem)):
        names = [node.arg] if isinstance(node.arg, nodes.Name) else node.arg.find_all(nodes.Name)
        column = next((name.name for name in names), None)
        if column is None or isinstance(node.arg, nodes.Slice):
            continue
        if not isinstance(node.node, (nodes.Name, nodes.Dict, *literals)):
            continue
        choices = isinstance(node.node, literals) or (
            isinstance(node.node, nodes.Name) and node.node.name == "answer_choices"
        )
        # In `answer_choices[1 - label]` a withheld label gives 2: only the label itself is refused.
        calculated = isinstance(node.arg, nodes.BinExpr | nodes.UnaryExpr | nodes.CondExpr)
        of_choices = choices and not calculated
        arguments = [node.node, nodes.Const(column), nodes.Const(of_choices)]
        node.arg = nodes.Filter(node.arg, _INDEX_FILTER, arguments, [], None, None)
        node.arg.lineno = node.lineno
    tree.set_environment(ENVIRONMENT)


def _make_environment() -> sandbox.SandboxedEnvironment:
    environment = sandbox.SandboxedEnvironment()
    environment.globals["zip"] = zip
    del environment.globals["lipsum"]
    environment.filters.update(
        choice=_choice, random=_random, most_frequent=_most_frequent, highlight=_highlight
    )
    environment.filters[_INDEX_FILTER] = _index
    return environment


ENVIRONMENT = _make_environment()


def _build(tree: nodes.Template) -> jinja2.Template:
    """Compiles a parsed template.

    `from_string` would do, but it wraps the globals in a ChainMap, and copying that for each row
    takes more than half of the time of a short template.
    """
    code = ENVIRONMENT.compile(tree)
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.globals)


def _draws_at_random(tree: nodes.Template) -> bool:
    """Returns whether a parsed template needs a `STREAM`."""
    return any(node.name in _RANDOM_FILTERS for node in tree.find_all(nodes.Filter))


def _reads_names(tree: nodes.Template) -> bool:
    """Returns whether a parsed template reads or sets any name at all, its own or Jinja's included.

    One that does not, and does not draw, prints the same for every row.
    """
    return next(tree.find_all(nodes.Name), None) is not None


def _columns_read(source: str) -> frozenset[str]:
    """Returns the names that the source takes from the row (the undeclared ones).

    Raises:
      jinja2.TemplateSyntaxError: the source is not valid Jinja.
    """
    return frozenset(meta.find_undeclared_variables(ENVIRONMENT.parse(source)))


NO_LABEL = "<NO LABEL>"
"""What T0 writes for an empty target, so that rows without a label are kept."""

_SEPARATOR = "|||"
# What promptsource puts for the separator inside a row's text while it renders. Its length counts
# in the truncation below, so the same word is needed for the same output.
_PIPE_PROTECTOR = "3ed2dface8203c4c9dfb1a5dc58e41e0"
# Promptsource cuts each printed expression by editing the source, not the values.
_TRUNCATION = " | string | truncate(2048) }}"


class _Program(NamedTuple):
    """Compiled Jinja source and what was seen in it."""

    code: jinja2.Template
    is_random: bool
    is_constant: bool

    def render(self, variables: dict[str, Any]) -> str:
        return "".join(self.code.root_render_func(self.code.new_context(variables)))


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered row: both texts are stripped; `choices` is None for an open-ended template."""

    inputs: str
    targets: str
    choices: list[str] | None


def remove_hyphens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with `_` for `-` in its column names (Jinja reads `a-b` as a subtraction)."""
    return {name.replace("-", "_"): value for name, value in row.items()}


class CompiledTemplate:
    """A template ready to render any number of rows.

    Making one is cheap: Jinja compiles at the first use (about a millisecond), or when `compile` is
    called. It can be pickled, and compiles anew where it is unpickled. Safe to use from several
    threads.

    Args:
      template: what to render.
      seed_name: names the random stream; give the task's name.
    """

    def __init__(self, template: Template, seed_name: str = "") -> None:
        self.template = template
        self.seed_name = seed_name

    def __reduce__(self) -> tuple[type, tuple[Template, str]]:
        return CompiledTemplate, (self.template, self.seed_name)

    def __repr__(self) -> str:
        return f"CompiledTemplate({self.template.name!r}, seed_name={self.seed_name!r})"

    def compile(self) -> "CompiledTemplate":
        """Compiles now and returns itself.

        Raises:
          UserError: a Jinja syntax error, or a filter that does not exist.
        """
        _ = self._body, self._choices
        return self

    def apply(self, row: Mapping[str, Any], row_index: int = 0) -> list[str]:
        """Returns the rendered parts, split at `|||` and stripped: promptsource's `apply(row)`.

        Raises:
          UserError: the row has a column `answer_choices`, or rendering fails.
        """
        return self._render(row, row_index)[0]

    def choices(self, row: Mapping[str, Any], row_index: int = 0) -> list[str] | None:
        """Returns the row's answer choices: promptsource's `get_answer_choices_list(row)`.

        Raises:
          UserError: rendering fails.
        """
        self.compile()  # a syntax error is no fault of the row
        try:
            return self._choice_list(self._variables(row, row_index))
        except Exception as error:
            raise self._failure(row, row_index, error) from error

    def example(self, row: Mapping[str, Any], row_index: int = 0) -> Example | None:
        """Renders the row by T0's rule, or returns None for a row that T0 drops.

        The rule is `apply_template` of the original's `t0/seqio_tasks/utils.py`: hyphens in column
        names become underscores; anything but two parts is dropped, and so are empty inputs; an
        empty target becomes `<NO LABEL>`. The choices are rendered once and serve the body too.

        Raises:
          UserError: the row has a column `answer_choices`, or rendering fails.
        """
        parts, choices = self._render(remove_hyphens(row), row_index)
        if len(parts) != 2 or not parts[0]:
            return None
        return Example(parts[0], parts[1] or NO_LABEL, choices)

    @cached_property
    def fixed_choices(self) -> list[str] | None:
        """The choices where they depend on no column: `get_fixed_answer_choices_list()`.

        None also where they are drawn at random, which promptsource would call fixed.

        Raises:
          UserError: rendering them fails.
        """
        program = self._choices
        if program is None or program.is_random or self._columns_of("answer_choices"):
            return None
        try:
            return _split(program.render({}))
        except Exception as error:
            raise UserError(
                f"{self._label}: its answer_choices fail: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def columns(self) -> frozenset[str]:
        """Names that the body and the choices read from the row, less `answer_choices`."""
        names = self._columns_of("jinja")
        if self.template.answer_choices is not None:
            names |= self._columns_of("answer_choices")
        return names - {"answer_choices"}

    @cached_property
    def is_random(self) -> bool:
        """Whether the body or the choices draw at random."""
        return self._body.is_random or (self._choices is not None and self._choices.is_random)

    def missing_columns(self, columns_of_data: Iterable[str]) -> list[str]:
        """Returns the columns that the template reads and the data lacks, sorted.

        The data's names count with hyphens removed. Jinja renders a missing column as nothing,
        which may be meant (`{% if x is defined %}`) and mostly is not.
        """
        return sorted(self.columns - {name.replace("-", "_") for name in columns_of_data})

    @cached_property
    def _body(self) -> _Program:
        return self._compile("jinja")

    @cached_property
    def _choices(self) -> _Program | None:
        return None if self.template.answer_choices is None else self._compile("answer_choices")

    def _source(self, field: str) -> str:
        if field == "jinja":
            return self.template.jinja.replace("}}", _TRUNCATION)
        return self.template.answer_choices

    def _compile(self, field: str) -> _Program:
        try:
            tree = ENVIRONMENT.parse(self._source(field))
            is_random = _draws_at_random(tree)
            is_constant = not is_random and not _reads_names(tree)
            if not self.template.published:
                _read_labels(tree)
            return _Program(_build(tree), is_random, is_constant)
        except jinja2.TemplateSyntaxError as error:
            raise self._syntax_error(field, error) from error

    def _columns_of(self, field: str) -> frozenset[str]:
        try:
            return _columns_read(self._source(field))
        except jinja2.TemplateSyntaxError as error:
            raise self._syntax_error(field, error) from error

    def _render(self, row: Mapping[str, Any], row_index: int) -> tuple[list[str], list[str] | None]:
        self.compile()  # a syntax error is no fault of the row
        try:
            variables = self._variables(row, row_index)
            if "answer_choices" in variables:
                raise UserError(
                    "the data has a column 'answer_choices', a name that templates use for the "
                    "rendered choices; rename the column"
                )
            choices = self._choice_list(variables)
            # A copy, for a template can change the list that it is given.
            variables["answer_choices"] = None if choices is None else choices.copy()
            return _split(self._body.render(variables)), choices
        except Exception as error:
            raise self._failure(row, row_index, error) from error

    def _variables(self, row: Mapping[str, Any], row_index: int) -> dict[str, Any]:
        """Returns the row as Jinja is to see it: pipes protected, with a stream if one is used."""
        variables = {
            name: value.replace(_SEPARATOR, _PIPE_PROTECTOR) if isinstance(value, str) else value
            for name, value in row.items()
        }
        if bytes in map(type, variables.values()):
            self._refuse_bytes(variables)
        if self.is_random:
            variables[STREAM] = random.Random(f"{self.seed_name}\0{row_index}")
        return variables

    def _refuse_bytes(self, variables: dict[str, Any]) -> None:
        for name in sorted(self.columns):
            value = variables.get(name)
            if isinstance(value, bytes):
                raise UserError(
                    f"column '{name}' holds bytes that are no text in UTF-8: {value[:40]!r}; write "
                    "the column as text"
                )

    def _choice_list(self, variables: dict[str, Any]) -> list[str] | None:
        if self._choices is None:
            return None
        if self._choices.is_constant:
            return self.fixed_choices.copy()
        return _split(self._choices.render(variables))

    @property
    def _label(self) -> str:
        where = f"{self.template.where}: " if self.template.where else ""
        return f"{where}template '{self.template.name}'"

    def _syntax_error(self, field: str, error: jinja2.TemplateSyntaxError) -> UserError:
        # Promptsource's edit of `}}` shows up in some messages; the user never wrote it.
        message = str(error.message).replace(_TRUNCATION, "}}")
        return UserError(
            f"{self._label}: its {field} is not valid Jinja, line {error.lineno}: {message}"
        )

    def _failure(self, row: Mapping[str, Any], row_index: int, error: Exception) -> UserError:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return UserError(
            f"{self._label} failed on row {row_index}: {kind}{str(error).rstrip('.')}. "
            f"The row's columns: {', '.join(map(str, row))}."
        )


def _split(text: str) -> list[str]:
    """Splits at the separators of the template, then puts back those of the row."""
    return [part.replace(_PIPE_PROTECTOR, _SEPARATOR).strip() for part in text.split(_SEPARATOR)]
