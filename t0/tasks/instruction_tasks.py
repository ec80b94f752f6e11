"""Builds SeqIO tasks of Super-NaturalInstructions, one for each encoding of Tk-Instruct.

    for name, arguments in instruction_tasks(Path("natural-instructions")).items():
        seqio.TaskRegistry.add(name, **arguments)       # sni_def_pos_2, sni_def, ...

    switches = VARIANTS["sni_def_pos_2"][0]      # definition and two positive examples
    input_parts(task, instance, switches)        # {"name": "", "definition": ..., ...}, together:
    # Definition: In this task, you are given a country name ... capital city.
    #
    #  Positive Example 1 -
    # Input: United States.
    #  Output: Washington.
    #
    #  Positive Example 2 -
    # ...
    # Now complete the following example -
    # Input: Afghanistan.
    # Output:

An input equals the output of Tk-Instruct's collator, including the spaces before "Positive" and
after "Output:". Inputs have a maximum length. The definition, the instance and EOS are always kept,
and examples are added while the input fits. The first example that does not fit is dropped, and so
are all later examples of its kind, positive or negative (`join_what_fits`). Inputs that are still
too long are truncated at the end.

Each record is made from one instance. It has an input, one of the instance's outputs as the target,
and the fields that metrics and predictions need: `references`, `task`, `category`, `id` and
`input`. Gin may bind `sni.instances_per_task` (default 100), `sni.languages` (default ("English",))
and `sni.seed` (default 0). The splits are those of Tk-Instruct: `test` and `train` have different
tasks, and `validation` exists only if there is a dev_tasks.txt.
"""

import dataclasses
import functools
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.compat import gin, seqio, tf
from t0.config.plain_data import Positive
from t0.errors import UserError
from t0.sources.instructions import (
    Chosen,
    Demonstration,
    Instance,
    Task,
    choose,
    listed_files,
    read_json,
    split_files,
)
from t0.tasks.instruction_steps import draw_output, encode_parts, join_what_fits
from t0.tasks.metrics import Expected, instruction_metrics
from t0.tasks.ordered_source import TEXT, TEXTS, Record
from t0.tasks.recipe_tasks import RecordSource
from t0.tasks.vocabulary import t5_features

_NAME = re.compile(
    r"sni(?P<name>_name)?(?P<definition>_def)?(_pos_(?P<positives>\d))?(_neg_(?P<negatives>\d))?"
    r"(?P<explanations>_expl)?"
)
NO_INSTRUCTION = "sni_input"
MIXED = "sni_tk_instruct"


@dataclasses.dataclass(frozen=True)
class Switches:
    """An encoding: it says which parts of a task's instruction precede the instance in an input.

    Attributes:
      name: whether to include the task's name.
      definition: whether to include the definition.
      positives: the maximum number of positive examples. An input has fewer if the task has fewer,
        or if the examples do not fit.
      negatives: the maximum number of negative examples.
      explanations: whether to include the explanation of each example.
    """

    name: bool = False
    definition: bool = False
    positives: int = 0
    negatives: int = 0
    explanations: bool = False


def switches_of(task: str) -> Switches:
    """Parses the encoding in a task's name.

        >>> switches_of("sni_def_pos_2_neg_2_expl").negatives
        2

    Raises:
      UserError: if `task` does not name an encoding.
    """
    match = _NAME.fullmatch(task)
    if task == NO_INSTRUCTION:
        return Switches()
    if not match or task == "sni":
        raise UserError(
            f"'{task}' is not an encoding of instructions. Expected sni, then any of _name, _def, "
            f"_pos_N, _neg_N and _expl in this order, or {NO_INSTRUCTION}."
        )
    flags = {name: bool(match[name]) for name in ("name", "definition", "explanations")}
    counts = {name: int(match[name] or 0) for name in ("positives", "negatives")}
    return Switches(**flags, **counts)


# Task name -> its encodings, which are those of Tk-Instruct's experiments. The models of
# Tk-Instruct's paper use the first task. If a task has several encodings, one of them is drawn for
# each instance.
VARIANTS: dict[str, tuple[Switches, ...]] = {
    **{
        name: (switches_of(name),)
        for name in (
            "sni_def_pos_2",
            "sni_def",
            "sni_def_pos_1",
            "sni_def_pos_4",
            "sni_def_pos_2_expl",
            "sni_def_pos_2_neg_2",
            "sni_def_pos_2_neg_2_expl",
            "sni_pos_1",
            "sni_pos_2",
            "sni_pos_4",
            "sni_name",
            NO_INSTRUCTION,
        )
    },
    MIXED: tuple(
        switches_of(name)
        for name in (
            "sni_def",
            "sni_pos_2",
            "sni_def_pos_2",
            "sni_def_pos_2_neg_2",
            "sni_def_pos_2_expl",
        )
    ),
}


def draw_switches(variants: Sequence[Switches], instance: Instance, seed: int) -> Switches:
    """Returns the encoding of an instance, which is drawn with the instance's id and `seed`."""
    if len(variants) == 1:
        return variants[0]
    return random.Random(f"{instance.id} {seed}").choice(variants)


def input_parts(task: Task, instance: Instance, switches: Switches) -> dict[str, Any]:
    """Returns the parts of an instance's input, as a record before the caching point has them.

    If the input is too long, positive and negative examples can be left out. Tk-Instruct does not
    count the tokens of the task's name when it selects examples.
    """
    explained = switches.explanations
    definition = _end_sentence(f"Definition: {task.definition.strip()}") + "\n\n"
    question = _end_sentence(f"Input: {instance.input.strip()}")
    return {
        "name": f"{task.name}. " if switches.name else "",
        "definition": definition if switches.definition else "",
        "positives": _format_examples("Positive", task.positives[: switches.positives], explained),
        "negatives": _format_examples("Negative", task.negatives[: switches.negatives], explained),
        "instance": f"Now complete the following example -\n{question}\nOutput: ",
    }


def _format_examples(kind: str, examples: Sequence[Demonstration], explained: bool) -> list[str]:
    texts = []
    for number, example in enumerate(examples, start=1):
        lines = [
            f" {kind} Example {number} -",
            _end_sentence(f"Input: {example.input.strip()}"),
            _end_sentence(f" Output: {example.output.strip()}"),
        ]
        if explained and example.explanation is not None:
            lines.append(_end_sentence(f" Explanation: {example.explanation.strip()}"))
        texts.append("\n".join(lines) + "\n\n")
    return texts


def _end_sentence(text: str) -> str:
    return text if text[-1] in string.punctuation else text + "."


@gin.configurable("sni", module="t0")
@dataclasses.dataclass(frozen=True)
class InstructionSettings:
    """The settings that select instances from a folder.

    Attributes:
      instances_per_task: the maximum number of instances of a task; None for all. The default is
        the number that Tk-Instruct and nanoT5 use.
      languages: the languages to include; tasks in other languages are excluded.
      seed: the seed with which instances, their order and their encodings are drawn.
    """

    instances_per_task: Positive | None = 100
    languages: Sequence[str] = ("English",)
    seed: int = 0


class InstructionSource(RecordSource):
    """A SeqIO data source of a folder's instances, each with the parts of its input.

    Args:
      folder: the folder with `tasks` and `splits`.
      variants: the encodings, from which one is drawn for each instance.

    Attributes:
      folder: the folder.
      places: "positives" and "negatives" -> the maximum number of examples in any encoding. Every
        record has this number of examples, because TensorFlow needs a fixed number. Missing
        examples are empty texts.
    """

    def __init__(self, folder: Path, variants: Sequence[Switches]) -> None:
        self.folder = folder
        self._variants = tuple(variants)
        self.places = {
            kind: max(getattr(switches, kind) for switches in variants)
            for kind in ("positives", "negatives")
        }
        examples = {
            kind: tf.TensorSpec((places,), tf.string) for kind, places in self.places.items()
        }
        text_names = ("name", "definition", "instance")
        texts = dict.fromkeys(("id", "task", "category", "input", *text_names), TEXT)
        super().__init__(
            read=self._records,
            count=lambda split: len(self.select_instances(split).instances),
            splits=tuple(split_files(folder)),
            signature={**texts, **examples, "outputs": TEXTS, "references": TEXTS},
            notes=self._notes,
            files=lambda split: listed_files(folder, split),
        )

    def select_instances(self, split: str) -> Chosen:
        """Returns the instances of a split; the first call reads the folder's tasks."""
        settings = InstructionSettings()
        return choose(
            self.folder,
            split,
            per_task=settings.instances_per_task,
            languages=tuple(settings.languages),
            seed=settings.seed,
        )

    def prediction_line(self, example: Mapping[str, Any], prediction: str) -> dict[str, Any]:
        """Returns a line of Tk-Instruct's `predicted_examples.jsonl`.

        Args:
          example: a record of the task, as SeqIO yields it.
          prediction: the predicted text.
        """
        text = tf.compat.as_text
        name, known_as = text(example["task"]), text(example["id"])
        return {
            "id": known_as,
            "Task": name,
            **_read_facts(self.folder, name),
            "Instance": {
                "id": known_as,
                "input": text(example["input"]),
                "output": [text(reference) for reference in example["references"]],
            },
            "prediction": prediction,
        }

    def _records(self, split: str) -> Iterator[Record]:
        seed = InstructionSettings().seed
        for task, instance in self.select_instances(split).instances:
            encoded = input_parts(task, instance, draw_switches(self._variants, instance, seed))
            yield {
                "id": instance.id,
                "task": task.name,
                "category": task.category,
                "input": instance.input,
                **encoded,
                **{
                    kind: [*encoded[kind], *[""] * (places - len(encoded[kind]))]
                    for kind, places in self.places.items()
                },
                # Training draws a random output as the target. Evaluation always uses the first
                # output.
                "outputs": instance.outputs if split == "train" else instance.outputs[:1],
                "references": instance.outputs,
            }

    def _notes(self, split: str) -> list[str]:
        chosen = self.select_instances(split)
        tasks = {task.name for task, _ in chosen.instances}
        return [
            f"{self.folder}, {split}: {len(chosen.instances):,} instances of {len(tasks)} tasks",
            *(
                f"{self.folder}, {split}: {len(names)} tasks left out, {why}, such as {names[0]}"
                for why, names in chosen.left_out.items()
            ),
        ]


def postprocess(
    output: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | Expected:
    """Returns a prediction as stripped text, or a target as `Expected`."""
    if not is_target:
        return output.strip()
    text = tf.compat.as_text
    return Expected(
        references=tuple(text(reference) for reference in example["references"]),
        task=text(example["task"]),
        category=text(example["category"]),
    )


# Results are cached, because consecutive predictions may belong to different tasks. A task's file
# has megabytes, but only some kilobytes of its content are kept.
@functools.lru_cache(maxsize=2048)
def _read_facts(folder: Path, task: str) -> dict[str, Any]:
    return {k: v for k, v in read_json(folder, task).items() if k != "Instances"}


def instruction_task(folder: Path, variants: Sequence[Switches]) -> dict[str, Any]:
    """Returns the keyword arguments of `seqio.TaskRegistry.add` for a task over a folder.

        seqio.TaskRegistry.add("mine", **instruction_task(folder, [switches_of("sni_def_pos_3")]))

    Args:
      folder: the folder with `tasks` and `splits`.
      variants: the encodings, from which one is drawn for each instance.

    Raises:
      UserError: if the folder has no lists of tasks.
    """
    source = InstructionSource(folder, variants)
    return {
        "source": source,
        "preprocessors": [
            encode_parts,
            seqio.CacheDatasetPlaceholder(),
            draw_output,
            functools.partial(join_what_fits, positives=source.places["positives"]),
            seqio.preprocessors.append_eos_after_trim,
        ],
        "output_features": t5_features(),
        "postprocess_fn": postprocess,
        "metric_fns": [instruction_metrics],
    }


def instruction_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for each task in `VARIANTS`.

    Raises:
      UserError: if the folder has no lists of tasks.
    """
    return {name: instruction_task(folder, variants) for name, variants in VARIANTS.items()}
