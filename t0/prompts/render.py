"""Renders rows with templates as promptsource 0.1.0 does, but compiles each template only once.

    prompt = compile_template(template, seed_name="super_glue_rte_can_we_infer")
    prompt.apply(row)      # ["Suppose It rains. Can we infer ...?", "Yes"], as promptsource's apply
    prompt.choices(row)    # ["Yes", "No"], as promptsource's get_answer_choices_list
    prompt.example(row)    # Example(inputs=..., targets="Yes", choices=["Yes", "No"]), T0's rule
    prompt.example({"premise": ..., "hypothesis": ...}, labeled=False)     # for predictions

All templates share one Jinja environment. It has promptsource's additions to Jinja and nothing
else: the global `zip` and the filters `choice`, `most_frequent` and `highlight`. This module
differs from promptsource as follows:

* Jinja runs in its sandbox, so that a template cannot run arbitrary Python code.
* Random draws are repeatable. Each row has its own random stream, whose seed is `seed_name` and the
  row's index. The filters `choice` and `random` draw from this stream. The answer choices draw
  first. Then the body draws from left to right, only in the branches that are taken. For the same
  row, `choices` and `apply` make the same draws. In promptsource, a filter draws once, at compile
  time, if its sequence is a constant. Otherwise it draws in each call. Jinja's `lipsum` is removed,
  because it can only draw from Python's shared random stream.
* Errors are UserErrors that name the template and the row.
* In the user's own templates, a label `1.0` or `"1"` selects the same choice as the integer 1. A
  label that selects no choice is an error (`read_labels`). Promptsource prints nothing instead.
* In the user's own templates, nothing is printed for a missing value, and blank answer choices are
  left out (`t0.prompts.missing_values`). Promptsource prints `None` and keeps blank choices.
* A column of bytes is an error. Promptsource prints `b'...'`.
* Only the separators in the template itself separate inputs and targets. Promptsource also splits
  at a `|||` inside a list or an object of the row, and at a `|||` in a choice that the body prints.
  Such a split drops the row or creates more choices. (Promptsource does not split at a `|||` in a
  text at the top level of the row.) We have 199,774 rows of T0's datasets, and no row contains
  `|||`.
* Text that is not valid Unicode (half of a surrogate pair) is an error.
* A row is never changed. If a template calls a method that might change a list inside its row
  (`{{ words.append("x") }}`), the template gets a copy of each row (`may_change_rows`).

Rows must be mappings with string keys.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import jinja2
from jinja2 import meta, nodes

from t0.errors import UserError
from t0.prompts import budget, missing_values
from t0.prompts.environments import (
    CHECKING_ENVIRONMENT,
    CUTS,
    ENVIRONMENT,
    HIDES,
    LONGEST_PRINTED,
    METERED_ENVIRONMENT,
    SEARCHING_ENVIRONMENT,
    STREAM,
    PrintsNested,
    count_cuts,
    draws_at_random,
    mark_nested,
    may_change_rows,
    read_as_nested,
    read_labels,
)
from t0.prompts.missing_values import Options, is_nan
from t0.prompts.separators import (
    PIPE_PROTECTOR,
    SEPARATOR,
    PreparedRow,
    prepared,
    protect_row,
    remove_hyphens,
    remove_targets,
    until_separator,
)
from t0.prompts.templates import Template

NO_LABEL = "<NO LABEL>"
"""The target that T0 uses instead of an empty target, so that rows without a label are kept."""

# To truncate printed texts, promptsource replaces each "}}" in the template's source. This module
# replaces each "}}" with one of these two texts.
_UNCUT = " | string }}"
_TRUNCATION = f" | string | truncate({LONGEST_PRINTED}) }}}}"


class _Program(NamedTuple):
    """A compiled Jinja source.

    Attributes:
      code: the compiled template.
      is_random: whether the template makes random draws.
      is_constant: whether the template prints the same text for every row. This is the case if it
        uses no name and makes no random draw.
      changes_rows: whether the template may change a list or dict of its row.
      limits: the limits for one row; None for a template that needs no meter.
    """

    code: jinja2.Template
    is_random: bool
    is_constant: bool
    changes_rows: bool
    limits: budget.Limits | None

    def render(self, variables: Mapping[str, Any], *, labeled: bool = True) -> str:
        meter = self.limits and budget.start_meter(self.limits)
        pieces = self.code.root_render_func(self.code.new_context(variables))
        pieces = pieces if labeled else until_separator(pieces)
        return "".join(meter.collect(pieces) if meter else pieces)


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered row.

    Attributes:
      inputs, targets: the two texts, without white space at their ends.
      choices: the answer choices; None for an open-ended template.
      cut: the lengths of the printed texts that were truncated at `LONGEST_PRINTED`, before
        truncation, in characters.
      blank: the indices of the template's answer choices that are blank in this row. `choices`
        keeps blank choices of a published template, but not those of a user's template.
      missing: the number of missing values for which nothing was printed.
    """

    inputs: str
    targets: str
    choices: list[str] | None
    cut: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()
    missing: int = 0

    @property
    def has_target(self) -> bool:
        """Whether the row has a target and, if the template has answer choices, any choice."""
        return self.targets != NO_LABEL and self.choices != []


class CompiledTemplate:
    """A template that renders any number of rows. The product makes it with `compile_template`.

    The constructor is cheap. The template is compiled on first use (about a millisecond), or when
    `compile` is called. An instance is thread-safe and can be pickled. After unpickling, the
    template is compiled again.

    Args:
      template: the template to render.
      seed_name: the seed of the random stream. Pass the task's name.
      metered: whether the limits of `budget` apply. They always apply to a template that is not
        published. Pass True if a file that anybody may have written says that it is published.
    """

    def __init__(self, template: Template, seed_name: str = "", *, metered: bool = False) -> None:
        self.template = template
        self.seed_name = seed_name
        self._metered = metered or not template.published

    def __reduce__(self) -> tuple[Any, ...]:
        metered = functools.partial(compile_template, metered=self._metered)
        return metered, (self.template, self.seed_name)

    def compile(self) -> "CompiledTemplate":
        """Compiles the template now and returns `self`.

        Raises:
          UserError: the template has a Jinja syntax error or an unknown filter.
        """
        _ = self._body, self._choices
        return self

    def apply(self, row: Mapping[str, Any], row_index: int = 0) -> list[str]:
        """Returns the rendered text, split at `|||` into stripped parts.

        This is promptsource's `apply(row)`.

        Raises:
          UserError: the row has a column `answer_choices`, or rendering fails.
        """
        return self._on_row(self._render, row, row_index)[0]

    def choices(self, row: Mapping[str, Any], row_index: int = 0) -> list[str] | None:
        """Returns the row's answer choices, like promptsource's `get_answer_choices_list(row)`.

        Raises:
          UserError: rendering fails.
        """

        def render(row: Mapping[str, Any], index: int) -> list[str] | None:
            return self._drop_blanks(self._choice_list(self._variables(row, index)))

        return self._on_row(render, row, row_index)

    def example(
        self, row: Mapping[str, Any], row_index: int = 0, *, labeled: bool = True
    ) -> Example | None:
        """Renders the row with T0's rules; returns None for a row that T0 drops.

        The rules are those of `apply_template` in the original `t0/seqio_tasks/utils.py`. Hyphens
        in column names become underscores. A row is dropped if it does not render to two parts, or
        if its inputs are empty. An empty target becomes `<NO LABEL>`. The choices are rendered only
        once, and the body uses them.

        Args:
          row: the row. To render a row with several templates, pass the result of `prepared`.
          row_index: the row's index in the split.
          labeled: whether to render the target. If False, rendering ends at the separator, and the
            target is `<NO LABEL>`.

        Raises:
          UserError: the row has a column `answer_choices`, or rendering fails.
        """
        row = row if isinstance(row, PreparedRow) else prepared(row)
        return self._on_row(self._example, row, row_index, labeled)

    def prints_nested(self, row: Mapping[str, Any], row_index: int = 0) -> bool:
        """Returns whether the template prints a list or an object.

        The model would read such a value in Python notation, such as `['red', 'blue']`. Call this
        method only for a row that renders without an error.
        """
        if not any(isinstance(value, list | tuple | Mapping) for value in row.values()):
            return False
        variables = self._variables(prepared(row), row_index)
        variables = {name: mark_nested(value) for name, value in variables.items()}
        try:
            variables["answer_choices"] = mark_nested(self._choice_list(variables))
            for code in self._checks:
                "".join(code.root_render_func(code.new_context(variables)))
        except PrintsNested:
            return True
        return False

    def prints_words(self, row: Mapping[str, Any], row_index: int = 0) -> bool:
        """Returns whether the template prints None, nan, [] or {}, or a cell with such a text.

        Call this method only for a row that renders without an error. A user's template never
        prints None or NaN (`Example.missing`). Fixed answer choices, such as "None", do not count.
        """
        variables = self._variables(prepared(row), row_index)
        choices = self._choice_list(variables)
        variables["answer_choices"] = choices and self._make_options(choices)
        printed = variables[missing_values.COUNTS] = []
        for code in self._searches:
            "".join(code.root_render_func(code.new_context(variables)))
        named = self.fixed_choices or ()
        return any(
            self.template.published if value is None or is_nan(value) else str(value) not in named
            for value in printed
        )

    def is_changed_by_missing(self, row: Mapping[str, Any], row_index: int = 0) -> bool:
        """Returns whether missing values or blank options change the row's texts or drop the row.

        Without these rules, the row would print `None`, `nan` or `<NO LABEL>`, or have blank
        choices.
        """
        values = [value for name, value in remove_hyphens(row).items() if name in self.columns]
        if not (any(map(missing_values.has_missing, values)) or "" in (self._fixed_options or ())):
            return False
        example = self.example(row, row_index)
        return any(map(is_nan, values)) or (
            example is not None and bool(example.missing or example.blank or not example.has_target)
        )

    def keeps_separators(self, row: Mapping[str, Any]) -> bool:
        """Returns whether promptsource would split this row's text where this class does not.

        It would split at a `|||` in a list or an object, and in the text of a choice.
        """
        row, of_choices = remove_hyphens(row), self._columns_of("answer_choices")
        return any(
            SEPARATOR in str(row.get(name))
            for name in self.columns
            if name in of_choices or not isinstance(row.get(name), str)
        )

    @cached_property
    def _checks(self) -> list[jinja2.Template]:
        """The choices and the body, without cuts, for `prints_nested`."""
        return self._compile_checks(CHECKING_ENVIRONMENT, read_labels)

    @cached_property
    def _searches(self) -> list[jinja2.Template]:
        """The choices and the body, without cuts, for `prints_words`."""
        steps = () if self.template.published else (read_labels,)
        return self._compile_checks(
            SEARCHING_ENVIRONMENT, *steps, missing_values.print_nothing_if_missing
        )

    def _compile_checks(
        self, environment: jinja2.Environment, *steps: Callable[[nodes.Template], None]
    ) -> list[jinja2.Template]:
        sources = (self.template.answer_choices, self.template.jinja)
        trees = [*map(environment.parse, filter(None, sources))]
        for tree in trees:
            for step in steps:
                step(tree)
        make = jinja2.Template.from_code
        return [make(environment, environment.compile(tree), environment.globals) for tree in trees]

    @cached_property
    def fixed_choices(self) -> list[str] | None:
        """The answer choices if they are the same for all rows, otherwise None.

        This is promptsource's `get_fixed_answer_choices_list`, with two differences: if the choices
        are drawn at random, the value is None, although promptsource returns them. Blank choices of
        a user's template are left out.

        Raises:
          UserError: rendering the choices fails.
        """
        return self._drop_blanks(self._fixed_options)

    @cached_property
    def _fixed_options(self) -> list[str] | None:
        """Like `fixed_choices`, but with blank choices."""
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
        """The names that the body and the choices read from the row, except `answer_choices`."""
        names = self._columns_of("jinja") | self._columns_of("answer_choices")
        return names - {"answer_choices"}

    @cached_property
    def input_columns(self) -> frozenset[str]:
        """The names in `columns` that inputs and choices read.

        A row without a label needs only these columns.
        """
        tree = self._parse("jinja")
        remove_targets(tree.body)
        names = meta.find_undeclared_variables(tree) - {"answer_choices"}
        return self._columns_of("answer_choices") | names

    @cached_property
    def nested_columns(self) -> frozenset[str]:
        """The columns that the body or the choices read as lists or objects.

        For example, the template loops over them, joins their items or reads a key. A text in such
        a column would be joined letter by letter.
        """
        trees = [self._parse(field) for field in ("jinja", "answer_choices")]
        return self.columns & frozenset(name for tree in trees for name in read_as_nested(tree))

    @cached_property
    def is_random(self) -> bool:
        """Whether the body or the choices make random draws."""
        return any(program.is_random for program in self._programs)

    def missing_columns(self, columns_of_data: Iterable[str]) -> list[str]:
        """Returns the sorted columns that the template reads but that the data does not have.

        Hyphens in the data's column names count as underscores. Jinja renders a missing column as
        nothing. In `{% if x is defined %}` this is intended, but elsewhere it is usually a mistake.
        """
        return sorted(self.columns - {name.replace("-", "_") for name in columns_of_data})

    @cached_property
    def _body(self) -> _Program:
        return self._compile("jinja")

    @cached_property
    def _choices(self) -> _Program | None:
        return None if self.template.answer_choices is None else self._compile("answer_choices")

    @cached_property
    def _programs(self) -> list[_Program]:
        return [self._body, *filter(None, [self._choices])]

    @cached_property
    def _changes_rows(self) -> bool:
        return any(program.changes_rows for program in self._programs)

    def _source(self, field: str) -> str:
        text = getattr(self.template, field) or ""
        if len(text) > budget.LONGEST_TEMPLATE and self._metered:
            raise UserError(
                f"{self._label}: its {field} has {len(text):,} characters, more than "
                f"{budget.LONGEST_TEMPLATE:,}; make it shorter, and put long texts into the rows"
            )
        if field == "jinja":
            end = _TRUNCATION if self.template.truncate else _UNCUT
            return text.replace("}}", end)
        return text

    @contextmanager
    def _compile_errors(self, field: str) -> Iterator[None]:
        try:
            yield
        except jinja2.TemplateSyntaxError as error:
            # Remove the truncation code that this module inserted at `}}`, because the user did not
            # write it.
            message = str(error.message).replace(_TRUNCATION, "}}").replace(_UNCUT, "}}")
            raise UserError(
                f"{self._label}: its {field} is not valid Jinja, line {error.lineno}: {message}"
            ) from error
        # The template may exceed the limits of Python's compiler or of recursion.
        except (RecursionError, MemoryError, SyntaxError, OverflowError, ValueError) as error:
            raise UserError(
                f"{self._label}: its {field} cannot be compiled ({type(error).__name__}: "
                f"{error!s:.100}); make it shorter, or nest it less"
            ) from error

    def _parse(self, field: str) -> nodes.Template:
        with self._compile_errors(field):
            return ENVIRONMENT.parse(self._source(field))

    def _compile(self, field: str) -> _Program:
        with self._compile_errors(field):
            tree = self._parse(field)
            is_random = draws_at_random(tree)
            is_constant = not is_random and next(tree.find_all(nodes.Name), None) is None
            changes_rows = may_change_rows(tree)
            if field == "jinja" and self.template.truncate:
                count_cuts(tree)
            if not self.template.published:
                read_labels(tree)
                missing_values.print_nothing_if_missing(tree)
            if self._metered:
                budget.Metering().visit(tree)
            environment = METERED_ENVIRONMENT if self._metered else ENVIRONMENT
            tree.set_environment(environment)
            # This function does not use `from_string`, which wraps the globals in a ChainMap.
            # Copying it for each row takes half of the rendering time of a short template.
            code = jinja2.Template.from_code(
                environment, environment.compile(tree), environment.globals
            )
        limits = budget.Limits.configured() if self._metered else None
        return _Program(code, is_random, is_constant, changes_rows, limits)

    def _columns_of(self, field: str) -> frozenset[str]:
        with self._compile_errors(field):
            return frozenset(meta.find_undeclared_variables(self._parse(field)))

    def _example(self, row: PreparedRow, row_index: int, labeled: bool) -> Example | None:
        texts, example = self._render(row, row_index, labeled=labeled)
        if example is None:
            return None
        "".join((*texts, *(example.choices or ()))).encode()  # fails for half of a surrogate pair
        return example

    def _render(
        self, row: Mapping[str, Any], row_index: int, *, labeled: bool = True
    ) -> tuple[list[str], Example | None]:
        """Renders a row; the example is None if there are not two texts, or the first is empty."""
        variables = self._variables(row, row_index)
        if "answer_choices" in variables:
            raise UserError(
                "the data has a column 'answer_choices', a name that templates use for the "
                "rendered choices; rename the column"
            )
        missing = variables[missing_values.COUNTS] = []
        options = self._choice_list(variables)
        # Pass a copy, because a template can change the list that it receives.
        copied = [option.replace(SEPARATOR, PIPE_PROTECTOR) for option in options or ()]
        variables["answer_choices"] = None if options is None else self._make_options(copied)
        cuts = variables[CUTS] = []
        texts = _split(self._body.render(variables, labeled=labeled))
        if len(texts) != 2 or not texts[0]:
            return texts, None
        blank = () if options is None or all(options) else _find_blanks(options)
        return texts, Example(
            texts[0],
            texts[1] or NO_LABEL,
            self._drop_blanks(options),
            tuple(cuts),
            blank,
            len(missing),
        )

    @cached_property
    def _leaves_out_blanks(self) -> bool:
        """Whether blank choices are left out. A template with empty choices is open-ended."""
        return not self.template.published and bool(self.template.answer_choices)

    def _drop_blanks(self, options: list[str] | None) -> list[str] | None:
        return [*filter(None, options)] if options and self._leaves_out_blanks else options

    def _make_options(self, options: list[str]) -> list[str]:
        return Options(options) if self._leaves_out_blanks else options

    def _variables(self, row: Mapping[str, Any], row_index: int) -> dict[str, Any]:
        """Returns Jinja's variables: the row's columns and, if needed, a random stream.

        In the texts of the row, separators are replaced by `PIPE_PROTECTOR`.
        """
        is_shared = isinstance(row, PreparedRow) and not self._changes_rows
        variables = dict(row) if is_shared else protect_row(row)
        if bytes in map(type, variables.values()):
            self._refuse_bytes(variables)
        if not self.template.published and float in map(type, variables.values()):
            missing = [name for name, value in variables.items() if is_nan(value)]
            variables.update(dict.fromkeys(missing))
        if getattr(row, "hides", None):
            variables[HIDES] = row.hides
        if self.is_random:
            variables[STREAM] = random.Random(f"{self.seed_name}\0{row_index}")
        return variables

    def _refuse_bytes(self, variables: dict[str, Any]) -> None:
        for name in sorted(self.columns):
            value = variables.get(name)
            if isinstance(value, bytes):
                raise UserError(
                    f"column '{name}' contains bytes that are not valid UTF-8: {value[:40]!r}; "
                    "write the column as text"
                )

    def _choice_list(self, variables: dict[str, Any]) -> list[str] | None:
        if self._choices is None:
            return None
        if self._choices.is_constant:
            return self._fixed_options.copy()
        return _split(self._choices.render(variables))

    @property
    def _label(self) -> str:
        where = f"{self.template.where}: " if self.template.where else ""
        return f"{where}template '{self.template.name}'"

    def _on_row(self, render: Callable, row: Mapping[str, Any], index: int, *options: bool) -> Any:
        """Turns every error of rendering into a UserError that names the template and the row."""
        self.compile()  # here, because a message about a syntax error must not name the row
        try:
            return render(row, index, *options)
        except Exception as error:
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            raise UserError(
                f"{self._label} failed on row {index}: {kind}{str(error).rstrip('.')}. "
                f"The row's columns: {', '.join(map(str, row))}."
            ) from error


def compile_template(
    template: Template, seed_name: str = "", *, metered: bool = False
) -> CompiledTemplate:
    """Returns a template that renders rows. Equal arguments return the same object.

    So Jinja compiles a template only once for the plain task and the task for rank evaluation. For
    the arguments, see `CompiledTemplate`.
    """
    # Templates are equal if they differ only in these fields.
    ignored = tuple(getattr(template, each.name) for each in fields(template) if not each.compare)
    return _compile_once(template, seed_name, metered or not template.published, ignored)


@functools.lru_cache(maxsize=4096)
def _compile_once(
    template: Template, seed_name: str, metered: bool, _ignored: tuple[Any, ...]
) -> CompiledTemplate:
    return CompiledTemplate(template, seed_name, metered=metered)


def _split(text: str) -> list[str]:
    """Splits a rendered text at the template's separators.

    Then restores the separators inside the row's texts.
    """
    return [piece.replace(PIPE_PROTECTOR, SEPARATOR).strip() for piece in text.split(SEPARATOR)]


def _find_blanks(options: Sequence[str]) -> tuple[int, ...]:
    return tuple(index for index, option in enumerate(options) if not option)
