"""Records the prompts of a training run in its model directory, and reads them for predictions.

    text = ModelPrompts({"inputs": 512, "targets": 16}, "spiece.model", prompts).to_json()
    model_prompts = read_model_prompts("tickets/model")         # reads tickets/model/prompts.json
    model_prompts.choose("which").compiled.example(row, labeled=False)

`prompts.json` contains the templates of all prompted tasks of the run, and the run's sequence
lengths. If the model directory also contains the vocabulary `spiece.model`, predictions need no
other files. The prompt of a few-shot task also has exemplars, which are rows of the training data.
They are texts, which no template reads.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence

from t0.config.plain_data import Tokens, read_plain
from t0.errors import UserError, reading, unknown_name
from t0.files import paths
from t0.files.untrusted import parsed_json
from t0.prompts.few_shot import Exemplar, FewShot, TextMeasure, count_fitting, join_exemplars
from t0.prompts.render import CompiledTemplate, Example, compile_template
from t0.prompts.templates import Template

FILE = "prompts.json"
VOCABULARY_FILE = "spiece.model"
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class RecordedPrompt:
    """The prompt of a task, as recorded in `prompts.json`.

    Attributes:
      task: the task's name.
      dataset: the dataset's name, followed by a slash and the subset if there is a subset.
      inputs_eos: whether the task's inputs end in EOS.
      template: the prompt's template.
      kinds: the kinds of the columns in the training data, with their names in the template; see
        `t0.sources.column_kinds`. Empty in files of earlier versions, and for T0's datasets.
      few_shot: how exemplars and the input are joined; None for a zero-shot task.
      exemplars: the exemplars before each input; empty if they are not stored.
    """

    task: str
    dataset: str
    inputs_eos: bool
    template: Template
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    few_shot: FewShot | None = None
    exemplars: tuple[Exemplar, ...] = ()

    @functools.cached_property
    def compiled(self) -> CompiledTemplate:
        """The compiled template, which makes the same random draws as in the task.

        Its limits of time and memory always apply, because anybody may have written the file.
        """
        return compile_template(self.template, self.task, metered=True)

    @property
    def is_ranked(self) -> bool:
        """Whether the prompt has answer choices."""
        return bool(self.template.answer_choices)

    def add_exemplars(self, example: Example, measure: TextMeasure) -> Example:
        """Puts the first stored exemplars that fit before a rendered row.

        The row has the first outer template, if there are any.
        """
        if self.few_shot is None:
            return example
        inputs = self.few_shot.apply_outer(0, example.inputs, example.choices)
        example = dataclasses.replace(example, inputs=inputs)
        fitting = count_fitting(self.few_shot, self.exemplars, example, measure)
        inputs = join_exemplars(self.few_shot, self.exemplars[:fitting], example.inputs)
        return dataclasses.replace(example, inputs=inputs)


@dataclasses.dataclass(frozen=True)
class ModelPrompts:
    """The contents of `prompts.json`.

    Attributes:
      lengths: the run's sequence lengths, in tokens: {"inputs": ..., "targets": ...}.
      vocabulary: the path of the vocabulary that the run used.
      prompts: the prompts of the run's tasks.
      schema: the version of the file's format.
    """

    lengths: Mapping[str, Tokens]
    vocabulary: str
    prompts: tuple[RecordedPrompt, ...]
    schema: int = 1

    def to_json(self) -> str:
        """Returns the text of `prompts.json`."""
        record = dataclasses.asdict(self)
        for prompt in record["prompts"]:
            if not prompt["few_shot"]:
                del prompt["few_shot"], prompt["exemplars"]
        return json.dumps(record, indent=1) + "\n"

    def choose(self, name: str | None) -> RecordedPrompt:
        """Returns the prompt with a name, or the default prompt.

        If all prompts are for one dataset and some have answer choices, the default is the first
        prompt with answer choices. Otherwise, there must be only one prompt, which is the default.

        Args:
          name: the name of a task or of a template; None for the default prompt.

        Raises:
          UserError: no prompt or several prompts match.
        """
        if name is not None:
            matches = [each for each in self.prompts if name in (each.task, each.template.name)]
            if not matches:
                names = [each.task for each in self.prompts]
                choices = [*names, *(each.template.name for each in self.prompts)]
                raise unknown_name("prompt", name, choices, f"The model has {_listed(names)}.")
        else:
            one_dataset = len({each.dataset for each in self.prompts}) == 1
            ranked = [each for each in self.prompts if each.is_ranked]
            matches = ranked[:1] if one_dataset and ranked else [*self.prompts]
        if len(matches) > 1:
            names = [each.task for each in matches]
            raise UserError(
                f"which of the model's {len(names)} prompts? Set one with --prompt=NAME: "
                f"{_listed(names)}"
            )
        return matches[0]


def count_stored(few_shot: FewShot, exemplars: Sequence[Exemplar]) -> int:
    """Returns how many of the first exemplars `prompts.json` may contain."""
    size = 0
    for number, exemplar in enumerate(exemplars[:_MOST_EXEMPLARS]):
        size += len(join_exemplars(few_shot, [exemplar], ""))
        if size > _MOST_CHARACTERS:
            return number
    return min(len(exemplars), _MOST_EXEMPLARS)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def find_model_folder(model: str) -> str | None:
    """Returns the folder with the prompts of a model directory or of a checkpoint in it."""
    for folder in (model, os.path.dirname(model.rstrip("/")) or "."):  # noqa: PTH120 (gs:// paths)
        if paths.exists(os.path.join(folder, FILE)):  # noqa: PTH118
            return folder
    return None


def read_lengths(model: str) -> Mapping[str, int] | None:
    """Returns the lengths that a training run recorded with its prompts, if it did."""
    folder = find_model_folder(model)
    return read_model_prompts(folder).lengths if folder else None


def read_model_prompts(folder: str) -> ModelPrompts:
    """Reads the prompts of a model directory.

    Raises:
      UserError: the file cannot be read, or is malformed.
    """
    path = os.path.join(folder, FILE)  # noqa: PTH118
    with reading(path):
        text = paths.read_bytes(path)
    try:
        recorded = read_plain(parsed_json(text), ModelPrompts, FILE)
        if recorded.schema != 1 or not recorded.prompts or recorded.lengths.keys() != _FEATURES:
            raise ValueError("expected schema 1, prompts, and the lengths of inputs and targets")
        for each in recorded.prompts:
            most = min(each.few_shot.k, _MOST_EXEMPLARS) if each.few_shot else 0
            fitting = count_stored(each.few_shot, each.exemplars) if most else 0
            if len(each.exemplars) > min(most, fitting):
                size = sum(len(shot.inputs) + len(shot.targets) for shot in each.exemplars)
                raise ValueError(
                    f"{each.task} has {len(each.exemplars):,} exemplars of {size:,} characters; "
                    f"expected at most {most:,} of {_MOST_CHARACTERS:,} characters, with separators"
                )
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}. Start the training again") from error
    templates = (
        dataclasses.replace(each, template=dataclasses.replace(each.template, where=path))
        for each in recorded.prompts
    )
    return dataclasses.replace(recorded, prompts=tuple(templates))


_MOST_EXEMPLARS, _MOST_CHARACTERS = 1_000, 2**20  # of a prompt
_FEATURES = {"inputs", "targets"}
