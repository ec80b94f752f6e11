r"""Puts exemplars before a row's input, in the form of FLAN's few-shot prompts.

    few_shot = FewShot(k=2)
    exemplars = [Exemplar(7, "It rains. Wet?", "Yes"), Exemplar(3, "It snows. Hot?", "No")]
    join_exemplars(few_shot, exemplars, "The sun shines. Dark?")
    # "It rains. Wet?\n\nYes\n\n\nIt snows. Hot?\n\nNo\n\n\nThe sun shines. Dark?\n\n"
    count_fitting(few_shot, exemplars, example, measure)    # how many of them fit

An exemplar is a training row with its target. The names and defaults of the texts are those of
FLAN. This module neither reads nor draws rows (`t0.catalogue.exemplars`).
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from t0.config.plain_data import Count, Tokens, read_plain
from t0.errors import UserError, unknown_name
from t0.prompts.render import Example


@dataclasses.dataclass(frozen=True)
class FewShot:
    r"""How exemplars are drawn, and how they are joined with a row's input.

    The text is, without the spaces:

        inputs_prefix INPUT x_y_delimiter targets_prefix TARGET example_separator    (k times)
        inputs_prefix INPUT x_y_delimiter targets_prefix final_suffix

    Attributes:
      k: the number of exemplars that are drawn for a row. 0 needs `outer_templates`.
      budget: the maximum number of tokens of the exemplars and the input together, without prefixes
        and separators, as in FLAN (1,920 there). None for no other limit than the length of the
        joined text, which always holds.
      split: the task's split with the exemplars.
      seed: the seed of the draws.
      exclude_self: whether the row itself and its duplicates are not drawn. FLAN and SeqIO may draw
        them.
      balance: "labels" draws each answer choice equally often; None draws rows uniformly.
      if_none_fits: the treatment of a row without room for any exemplar: "zero_shot" keeps its
        zero-shot prompt, "drop" leaves the row out, as FLAN does.
      inputs_prefix: the text before each input.
      targets_prefix: the text before each target.
      x_y_delimiter: the text between an input and its target.
      example_separator: the text after each exemplar.
      final_suffix: the text at the end.
      outer_templates: texts around an input, with `{inputs}` and, if the choices are to be printed,
        `{choices}`. Each row and its exemplars have a random one. INPUT above includes it. Empty for
        none.
      length: the maximum number of tokens of the joined text, for tasks of a mixture. An evaluation
        uses the length of its run instead.
      same_template: whether exemplars have the row's template. If not, each has a random template of
        the few-shot tasks on the same dataset.
      order: None draws exemplars for each row by itself; "seqio" takes them in the order of SeqIO's
        `FewshotDataSource`, which may draw the row itself.
      store: whether a model that is trained on the task stores exemplars with its prompts.
      suffix: the end of the task's name, after the number, such as "opt"; lower-case letters.

    Raises:
      ValueError: K is 0 without outer templates, or an outer template or the suffix is malformed.
    """

    k: Count
    budget: Tokens | None = None
    split: str = "train"
    seed: Count = 0
    exclude_self: bool = True
    balance: Literal["labels"] | None = None
    if_none_fits: Literal["zero_shot", "drop"] = "zero_shot"
    inputs_prefix: str = ""
    targets_prefix: str = ""
    x_y_delimiter: str = "\n\n"
    example_separator: str = "\n\n\n"
    final_suffix: str = ""
    outer_templates: tuple[str, ...] = ()
    length: Tokens | None = None
    same_template: bool = True
    order: Literal["seqio"] | None = None
    store: bool = True
    suffix: str = ""

    def __post_init__(self) -> None:
        if not self.k and not self.outer_templates:
            raise ValueError("k is 0; expected a whole number from 1, or `outer_templates`")
        for template in self.outer_templates:
            if (template.count("{inputs}"), template.count("{choices}")) not in ((1, 0), (1, 1)):
                raise ValueError(
                    f"the outer template {template[:80]!r} must have {{inputs}} once, and may have "
                    "{choices} once"
                )
        if not re.fullmatch("[a-z]*", self.suffix):
            raise ValueError(
                f"suffix is {self.suffix[:80]!r}; expected lower-case letters, like opt"
            )

    @property
    def separators(self) -> dict[str, str]:
        """Name -> text between two other texts of the prompt."""
        return {
            "x_y_delimiter": self.x_y_delimiter + self.targets_prefix,
            "example_separator": self.example_separator + self.inputs_prefix,
        }

    def apply_outer(self, number: int, inputs: str, choices: Sequence[str] | None) -> str:
        """Puts the outer template of a number around an input, if there are outer templates."""
        if not self.outer_templates:
            return inputs
        texts = {"{inputs}": inputs, "{choices}": "; ".join(choices or ())}
        template = self.outer_templates[number]
        return re.sub(r"\{(inputs|choices)\}", lambda match: texts[match[0]], template)

    def facts(self) -> dict[str, Any]:
        """Returns the facts for a results file: K, the seed, and other options if they are set."""
        options = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        facts = {"num_fewshot": options.pop("k"), "fewshot_seed": options.pop("seed")}
        changed = {name: value for name, value in options.items() if value != defaults[name]}
        return facts | ({"fewshot_options": changed} if changed else {})


# The options for tasks of a mixture. Evaluations do not have them.
MIXTURE_OPTIONS = ("length", "same_template", "order", "store", "suffix")


def read_few_shot(
    k: int, options: Mapping[str, Any], where: str, *, exclude: Sequence[str] = ()
) -> FewShot:
    """Reads the settings of few-shot prompts.

    Args:
      k: the number of exemplars.
      options: the other fields of `FewShot`, as plain data.
      where: the origin of the options, for messages.
      exclude: names of fields that are not allowed in the options.

    Raises:
      UserError: a name is unknown, or a value has a wrong type or is out of range.
    """
    exclude = ("k", *exclude)
    names = [field.name for field in dataclasses.fields(FewShot) if field.name not in exclude]
    for name in options:
        if name not in names:
            raise unknown_name(f"option of {where}", name, names, f"There are: {', '.join(names)}")
    try:
        return read_plain({"k": k, **options}, FewShot, where)
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.startswith(where) else f"{where}: {text}") from error


@dataclasses.dataclass(frozen=True)
class Exemplar:
    """A row that shows the task: its number in its split, its input and its target."""

    row: int
    inputs: str
    targets: str


class FewShotPrompt(NamedTuple):
    """A row's few-shot prompt.

    Attributes:
      inputs: the text that the model reads.
      exemplars: the exemplars in it, in order.
      drawn: the number of exemplars that were drawn.
      is_cut: whether the row's own input is too long, without any exemplar.
    """

    inputs: str
    exemplars: tuple[Exemplar, ...]
    drawn: int
    is_cut: bool = False


@dataclasses.dataclass(frozen=True)
class TextMeasure:
    """Measures texts in the tokens of a model.

    Attributes:
      count: a function that returns the number of tokens of a text, without EOS.
      fits: a function that takes an input and the texts that may follow it (the answer choices, or
        the target), and returns whether the model reads the input whole.
    """

    count: Callable[[str], int]
    fits: Callable[[str, Sequence[str]], bool]


UNLIMITED = TextMeasure(count=lambda text: 0, fits=lambda inputs, answers: True)


def token_measure(count: Callable[[str], int], length: int | None) -> TextMeasure:
    """Returns a measure that only limits the inputs.

    Args:
      count: see `TextMeasure`.
      length: the maximum number of tokens of the inputs, which do not end in EOS; None for no limit.
    """
    return TextMeasure(count, lambda inputs, answers: length is None or count(inputs) <= length)


def describe_exemplars(exemplars: Mapping[int, int]) -> str:
    """Describes how many rows have how many exemplars.

    >>> describe_exemplars({0: 1, 4: 2400})
    'Exemplars: 4 before 2,400 rows, 0 before 1 row'

    Args:
      exemplars: number of exemplars -> number of rows.
    """
    counts = (
        f"{number} before {rows:,} row{'s' * (rows != 1)}"
        for number, rows in sorted(exemplars.items(), reverse=True)
    )
    return f"Exemplars: {', '.join(counts)}"


def join_exemplars(few_shot: FewShot, exemplars: Sequence[Exemplar], inputs: str) -> str:
    """Returns the text that the model reads. Without exemplars, this is the zero-shot input."""
    if not exemplars:
        return inputs
    texts = []
    for exemplar in exemplars:
        texts += [few_shot.inputs_prefix, exemplar.inputs, few_shot.x_y_delimiter]
        texts += [few_shot.targets_prefix, exemplar.targets, few_shot.example_separator]
    texts += [few_shot.inputs_prefix, inputs, few_shot.x_y_delimiter]
    return "".join([*texts, few_shot.targets_prefix, few_shot.final_suffix])


def count_within_budget(sizes: Sequence[int], input_size: int, budget: int) -> int:
    """Returns how many of the first exemplars fit into a budget together with the input.

    >>> count_within_budget([2, 3, 4], input_size=5, budget=13)
    2

    Args:
      sizes: the number of tokens of each exemplar, input and target together.
      input_size: the number of tokens of the row's input.
      budget: the maximum number of tokens of the exemplars and the input.
    """
    used = input_size
    for number, size in enumerate(sizes):
        used += size
        if used > budget:
            return number
    return len(sizes)


def count_fitting(
    few_shot: FewShot, exemplars: Sequence[Exemplar], example: Example, measure: TextMeasure
) -> int:
    """Returns how many of the first exemplars fit before a row's input.

    They fit if they are within the budget, and if no token of the joined text is truncated.
    """
    fitting = len(exemplars)
    if few_shot.budget is not None:
        count = measure.count
        sizes = [count(exemplar.inputs) + count(exemplar.targets) for exemplar in exemplars]
        fitting = count_within_budget(sizes, count(example.inputs), few_shot.budget)
    answers = example.choices or [example.targets]
    while fitting:
        if measure.fits(join_exemplars(few_shot, exemplars[:fitting], example.inputs), answers):
            break
        fitting -= 1
    return fitting
