"""The SeqIO tasks of a folder of Super-NaturalInstructions, one for each encoding of instructions.

    for name, arguments in instruction_tasks(Path("natural-instructions")).items():
        seqio.TaskRegistry.add(name, **arguments)       # sni_def_pos_2, sni_def, ...

A record is an instance: its input by `t0.tasks.instructions`, one of its outputs as the target, and
what judges a prediction: `references`, `task`, `category`, `id` and `input`. Gin may bind
`sni.instances_per_task` (100), `sni.languages` (("English",)) and `sni.seed` (0). The splits are
Tk-Instruct's: other tasks in `test` than in `train`; `validation` only if there is a dev_tasks.txt.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.compat import gin, seqio, tf
from t0.sources.instructions import Chosen, choose, read_json, split_files
from t0.tasks import instruction_metrics
from t0.tasks.fitting import draw_target, join_what_fits
from t0.tasks.instructions import VARIANTS, Switches, drawn, input_parts
from t0.tasks.records import TEXT, TEXTS, Record, RecordSource, t5_features


@gin.configurable("sni", module="t0")
@dataclasses.dataclass(frozen=True)
class Settings:
    """What is taken of a folder.

    Attributes:
      instances_per_task: most of a task, as Tk-Instruct and nanoT5 take; None for all.
      languages: tasks in others are left out.
      seed: of what is drawn: instances, their order, encodings.
    """

    instances_per_task: int | None = 100
    languages: Sequence[str] = ("English",)
    seed: int = 0


class InstructionSource(RecordSource):
    """The instances of a folder, each with its instruction in pieces.

    Args:
      folder: holds `tasks` and `splits`.
      variants: the encodings, of which each instance draws one.
    """

    def __init__(self, folder: Path, variants: Sequence[Switches]) -> None:
        self.folder = folder
        self._variants = tuple(variants)
        # As many places as any of the encodings fills, so that TensorFlow knows the number.
        self._places = {
            kind: max(getattr(switches, kind) for switches in variants)
            for kind in ("positives", "negatives")
        }
        examples = {
            kind: tf.TensorSpec((places,), tf.string) for kind, places in self._places.items()
        }
        pieces = ("name", "definition", "instance")
        texts = dict.fromkeys(("id", "task", "category", "input", *pieces), TEXT)
        super().__init__(
            read=self._records,
            count=lambda split: len(self.chosen(split).instances),
            splits=tuple(split_files(folder)),
            signature={**texts, **examples, "outputs": TEXTS, "references": TEXTS},
            notes=self._notes,
        )

    def chosen(self, split: str) -> Chosen:
        """Returns the instances of a split; the first call reads the folder's tasks."""
        settings = Settings()
        return choose(
            self.folder,
            split,
            per_task=settings.instances_per_task,
            languages=tuple(settings.languages),
            seed=settings.seed,
        )

    def told(self, example: Mapping[str, Any], prediction: str) -> dict[str, Any]:
        """Returns a line of Tk-Instruct's `predicted_examples.jsonl`.

        Args:
          example: a record of the task, as SeqIO gives it.
          prediction: the text.
        """
        text = tf.compat.as_text
        name, known_as = text(example["task"]), text(example["id"])
        return {
            "id": known_as,
            "Task": name,
            **_facts(self.folder, name),
            "Instance": {
                "id": known_as,
                "input": text(example["input"]),
                "output": [text(reference) for reference in example["references"]],
            },
            "prediction": prediction,
        }

    def _records(self, split: str) -> Iterator[Record]:
        seed = Settings().seed
        for task, instance in self.chosen(split).instances:
            parts = input_parts(task, instance, drawn(self._variants, instance, seed))
            yield {
                "id": instance.id,
                "task": task.name,
                "category": task.category,
                "input": instance.input,
                "name": parts.name,
                "definition": parts.definition,
                "positives": self._filled("positives", parts.positives),
                "negatives": self._filled("negatives", parts.negatives),
                "instance": parts.instance,
                # Only what is trained on is drawn: an evaluation is the same each time.
                "outputs": instance.outputs if split == "train" else instance.outputs[:1],
                "references": instance.outputs,
            }

    def _filled(self, kind: str, examples: Sequence[str]) -> list[str]:
        return [*examples, *[""] * (self._places[kind] - len(examples))]

    def _notes(self, split: str) -> list[str]:
        chosen = self.chosen(split)
        tasks = {task.name for task, _ in chosen.instances}
        return [
            f"{self.folder}, {split}: {len(chosen.instances):,} instances of {len(tasks)} tasks",
            *(
                f"{self.folder}, {split}: {len(names)} tasks left out, {why}, such as {names[0]}"
                for why, names in chosen.left_out.items()
            ),
        ]


# Some kilobytes of each task, out of a file of megabytes; predictions come by tasks in turns.
@functools.lru_cache(maxsize=2048)
def _facts(folder: Path, task: str) -> dict[str, Any]:
    return {k: v for k, v in read_json(folder, task).items() if k != "Instances"}


def instruction_task(folder: Path, variants: Sequence[Switches]) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for a folder in some encoding.

        seqio.TaskRegistry.add("mine", **instruction_task(folder, [switches_of("sni_def_pos_3")]))

    Raises:
      UserError: if the folder has no lists of tasks.
    """
    return {
        "source": InstructionSource(folder, variants),
        "preprocessors": [
            draw_target,
            join_what_fits,
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ],
        "output_features": t5_features(),
        "postprocess_fn": instruction_metrics.postprocess,
        "metric_fns": [instruction_metrics.metrics],
    }


def instruction_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns name -> arguments of `seqio.TaskRegistry.add` for each of `VARIANTS`.

    Raises:
      UserError: if the folder has no lists of tasks.
    """
    return {name: instruction_task(folder, variants) for name, variants in VARIANTS.items()}
