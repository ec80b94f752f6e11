"""Renders rows with templates, as promptsource 0.1.0 does, but compiles each template only once.

    prompt = CompiledTemplate(template, seed_name="super_glue_rte_can_we_infer")
    prompt.apply(row)      # ["Suppose It rains. Can we infer ...?", "Yes"], as promptsource's apply
    prompt.choices(row)    # ["Yes", "No"], as promptsource's get_answer_choices_list
    prompt.example(row)    # Example(inputs=..., targets="Yes", choices=["Yes", "No"]), T0's rule

All templates share one Jinja environment. It has what promptsource adds to Jinja and nothing else:
the global `zip` and the filters `choice`, `most_frequent` and `highlight`. This module differs from
promptsource as follows:

* Jinja runs in its sandbox, so that a template cannot run arbitrary Python code.
* Random draws are repeatable. The filters `choice` and `random` draw from one random stream for
  each row, seeded by `seed_name` and the row's index. The answer choices draw first, then the body
  from left to right, only in the branches that are taken; `choices` and `apply` of one row agree.
  Promptsource draws once, while it compiles, if the sequence is a constant, else in each call.
  Jinja's `lipsum` is removed, because it can only draw from Python's shared random stream.
* Errors are UserErrors that name the template and the row.
* In the user's own templates a label `1.0` or `"1"` is the integer 1 where it picks a choice. A
  label that picks no choice is an error; promptsource prints nothing (`_read_labels`).
* A column of bytes is an error; promptsource prints `b'...'`.

Rows must be mappings with text keys. A template may change lists inside the row
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
"""The variable that holds the row's `random.Random`. No column can have this name."""

_RANDOM_FILTERS = ("choice", "random")
_INDEX_FILTER = "\0index"  # a template cannot write this name


@jinja2.pass_context
def _choice(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item. With `pass_context`, Jinja does not evaluate the filter at compile time."""
    if not len(items):
        raise IndexError("'choice' got an empty sequence or a column that the row lacks")
    return context[STREAM].choice(items)


@jinja2.pass_context
def _random(context: jinja2.runtime.Context, items: Sequence[Any]) -> Any:
    """Draws one item, or returns an undefined value for an empty sequence, as Jinja's `random`."""
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
    """Returns the integer that a value means (1 for 1, 1.0, "1" and "1.0"), or None.

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
    """Returns whether a value is missing: None, an empty string or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _index(value: Any, items: Any, column: str, of_choices: bool) -> Any:
    """Returns the subscript to use where a template has `items[value]`.

    Args:
      value: the subscript's value in this row.
      items: the list or mapping.
      column: the name of the value's column, for messages.
      of_choices: whether `items` are choices, one of which the label must pick.

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
    # -1 is a withheld label. It picks the last choice in promptsource; `RowReport` counts it.
    if of_choices and (number is None or not -1 <= number < len(items)):
        listed = ", ".join(f"{i} is {item!r}" for i, item in enumerate(items[:20]))
        raise UserError(
            f"column '{column}' is {value!r}, which picks none of the {len(items)} choices "
            f"({listed}); write the label's number, or null where there is none"
        )
    return value if number is None else number


def _read_labels(tree: nodes.Template) -> None:
    """Changes a parsed template so that subscripts accept labels of any spelling, and check them.

    A float or a string that means a whole number subscripts a list as that number. A value that
    picks no answer choice, or no item of a list in the template, is a UserError that names its
    column.
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
        # A withheld label makes the 1 - label of `answer_choices[1 - label]` 2: so calculated
        # subscripts are not checked.
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

    `from_string` would work, but it wraps the globals in a ChainMap. Copying that for each row
    takes more than half of a short template's time.
    """
    code = ENVIRONMENT.compile(tree)
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.globals)


def _draws_at_random(tree: nodes.Template) -> bool:
    """Returns whether a parsed template needs a `STREAM`."""
    return any(node.name in _RANDOM_FILTERS for node in tree.find_all(nodes.Filter))


def _reads_names(tree: nodes.Template) -> bool:
    """Returns whether a parsed template reads or sets any name, Jinja's names included.

    A template that uses no name and draws nothing prints the same for every row.
    """
    return next(tree.find_all(nodes.Name), None) is not None


def _columns_read(source: str) -> frozenset[str]:
    """Returns the names that the source reads from the row: those that it does not declare.

    Raises:
      jinja2.TemplateSyntaxError: the source is not valid Jinja.
    """
    return frozenset(meta.find_undeclared_variables(ENVIRONMENT.parse(source)))


NO_LABEL = "<NO LABEL>"
"""T0's text for an empty target, so that rows without a label are kept."""

_SEPARATOR = "|||"
# Promptsource replaces the separator inside a row's text by this while it renders. The same string
# is used here because its length counts in the truncation below.
_PIPE_PROTECTOR = "3ed2dface8203c4c9dfb1a5dc58e41e0"
# Promptsource truncates each printed expression by editing the template's source.
_TRUNCATION = " | string | truncate(2048) }}"


class _Program(NamedTuple):
    """A compiled Jinja source.

    Attributes:
      code: the compiled template.
      is_random: whether it draws at random.
      is_constant: whether it prints the same for every row.
    """

    code: jinja2.Template
    is_random: bool
    is_constant: bool

    def render(self, variables: dict[str, Any]) -> str:
        return "".join(self.code.root_render_func(self.code.new_context(variables)))


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered row. Both texts are stripped; `choices` is None for an open-ended template."""

    inputs: str
    targets: str
    choices: list[str] | None


def remove_hyphens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces `-` by `_` in the row's column names, since Jinja reads `a-b` as a subtraction."""
    return {name.replace("-", "_"): value for name, value in row.items()}


class CompiledTemplate:
    """A template that renders any number of rows.

    The constructor is cheap: Jinja compiles at the first use (about a millisecond), or when
    `compile` is called. An instance can be pickled, is compiled again after unpickling, and may be
    used by several threads.

    Args:
      template: the template to render.
      seed_name: the seed of the random stream; pass the task's name.
    """

    def __init__(self, template: Template, seed_name: str = "") -> None:
        self.template = template
        self.seed_name = seed_name

    def __reduce__(self) -> tuple[type, tuple[Template, str]]:
        return CompiledTemplate, (self.template, self.seed_name)

    def __repr__(self) -> str:
        return f"CompiledTemplate({self.template.name!r}, seed_name={self.seed_name!r})"

    def compile(self) -> "CompiledTemplate":
        """Compiles the template now, and returns `self`.

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
        self.compile()  # here, because a message about a syntax error must not name the row
        try:
            return self._choice_list(self._variables(row, row_index))
        except Exception as error:
            raise self._failure(row, row_index, error) from error

    def example(self, row: Mapping[str, Any], row_index: int = 0) -> Example | None:
        """Renders the row by T0's rule, or returns None for a row that T0 drops.

        The rule is `apply_template` of the original's `t0/seqio_tasks/utils.py`: hyphens in column
        names become underscores; a row with other than two parts, or with empty inputs, is dropped;
        an empty target becomes `<NO LABEL>`. The choices are rendered once, also for the body.

        Raises:
          UserError: the row has a column `answer_choices`, or rendering fails.
        """
        parts, choices = self._render(remove_hyphens(row), row_index)
        if len(parts) != 2 or not parts[0]:
            return None
        return Example(parts[0], parts[1] or NO_LABEL, choices)

    @cached_property
    def fixed_choices(self) -> list[str] | None:
        """The choices if they depend on no column: promptsource's `get_fixed_answer_choices_list`.

        None also if they are drawn at random; promptsource returns them as fixed.

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
        """The names that the body and the choices read from the row, without `answer_choices`."""
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

        Hyphens in the data's names count as underscores. Jinja renders a missing column as nothing,
        which is intended in `{% if x is defined %}` and mostly a mistake elsewhere.
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
        self.compile()  # here, because a message about a syntax error must not name the row
        try:
            variables = self._variables(row, row_index)
            if "answer_choices" in variables:
                raise UserError(
                    "the data has a column 'answer_choices', a name that templates use for the "
                    "rendered choices; rename the column"
                )
            choices = self._choice_list(variables)
            # A copy, because a template can change the list that it gets.
            variables["answer_choices"] = None if choices is None else choices.copy()
            return _split(self._body.render(variables)), choices
        except Exception as error:
            raise self._failure(row, row_index, error) from error

    def _variables(self, row: Mapping[str, Any], row_index: int) -> dict[str, Any]:
        """Returns Jinja's variables: the row with protected pipes, and a stream if one is used."""
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
        # Some messages show the truncation that was put in for `}}`, which the user did not write.
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
    """Splits at the template's separators, then restores the separators inside the row's text."""
    return [part.replace(_PIPE_PROTECTOR, _SEPARATOR).strip() for part in text.split(_SEPARATOR)]
