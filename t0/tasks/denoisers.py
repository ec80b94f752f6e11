"""Builds UL2's denoisers: seven pretraining tasks, and the mixture of them.

    definitions = denoiser_definitions("text", texts)   # text_ul2_r1, ..., text_ul2_x4, text_ul2_s
    mixtures = denoiser_mixtures(definitions)           # {"text_ul2": [("text_ul2_r1", rate), ...]}

| denoiser | mean span, in tokens | masked share | share of the examples |
|---|---|---|---|
| `r1`, `r2` (mode R) | 3; 8 | 0.15 | 0.2 each |
| `x1`, `x2`, `x3`, `x4` (mode X) | 3; 8; 64; 64 | 0.5; 0.5; 0.15; 0.5 | 0.1 each |
| `s` (mode S) | prefix language model | 0.5 | 0.2 |

The table is from the UL2 paper (Table 1). Each denoiser is T5's `span_corruption` or `prefix_lm`,
and its inputs begin with the mode's token. gin sets the mode tokens, and another table:

    ul2.modes = 'released'          # [NLU], [NLG] and [S2S], as in the released model
    ul2.denoisers = {'r1': ('R', 3.0, 0.15, 0.5), 's': ('S', None, 0.5, 0.5)}
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from t0.compat import gin, seqio, t5_preprocessors, tf
from t0.config.plain_data import NotNegative, Share, read_plain
from t0.errors import UserError, unknown_name
from t0.sources.hub import HubTexts
from t0.sources.texts import FolderTexts
from t0.tasks.recipe_tasks import TextSource, pretraining_task

Mode = Literal["R", "S", "X"]
# Value of gin's `ul2.modes` -> mode -> its token.
MODE_TOKENS: dict[str, dict[str, str]] = {
    "paper": {"R": "[R]", "S": "[S]", "X": "[X]"},
    "released": {"R": "[NLU]", "S": "[S2S]", "X": "[NLG]"},
    "none": {"R": "", "S": "", "X": ""},
}


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """A row of the table of denoisers.

    Attributes:
      mode: the name of the mode.
      mean_span: the mean length of a masked span, in tokens; None for a prefix language model.
      density: the share of the tokens that are masked.
      share: the denoiser's share of the examples, relative to the other shares.
    """

    mode: Mode
    mean_span: float | None
    density: float
    share: float

    @property
    def step(self) -> Callable[..., Any]:
        """T5's preprocessor."""
        return (
            t5_preprocessors.prefix_lm
            if self.mean_span is None
            else t5_preprocessors.span_corruption
        )

    @property
    def parameters(self) -> dict[str, float]:
        """The arguments of T5's preprocessor."""
        spans = {} if self.mean_span is None else {"mean_noise_span_length": float(self.mean_span)}
        return {"noise_density": self.density, **spans}


UL2 = {
    "r1": Denoiser("R", 3, 0.15, 0.2),
    "r2": Denoiser("R", 8, 0.15, 0.2),
    "x1": Denoiser("X", 3, 0.5, 0.1),
    "x2": Denoiser("X", 8, 0.5, 0.1),
    "x3": Denoiser("X", 64, 0.15, 0.1),
    "x4": Denoiser("X", 64, 0.5, 0.1),
    "s": Denoiser("S", None, 0.5, 0.2),
}


@dataclasses.dataclass(frozen=True)
class Ul2Settings:
    """The denoisers of a run, and their mode tokens (gin: `ul2.denoisers`, `ul2.modes`).

    Attributes:
      denoisers: name -> (mode, mean span or None, density, share). Denoisers of UL2's table that
        are missing here are not used. None for UL2's table.
      modes: "paper" ([R], [S], [X]), "released" ([NLU], [S2S], [NLG]) or "none".
    """

    denoisers: Mapping[str, tuple[Mode, float | None, Share, NotNegative]] | None = None
    modes: Literal["paper", "released", "none"] = "paper"


_Settings = gin.external_configurable(Ul2Settings, "ul2", module="t0")


def _read_settings() -> Ul2Settings:
    settings = _Settings()
    try:
        read = read_plain(dataclasses.asdict(settings), Ul2Settings, "ul2")
    except ValueError as error:
        raise UserError(f"{error} (gin: ul2.denoisers, ul2.modes)") from error
    for name, (mode, mean_span, density, _) in (read.denoisers or {}).items():
        if name not in UL2:
            raise unknown_name("denoiser", name, UL2, "It is in ul2.denoisers (gin).")
        if not 0 < density < 1 or mean_span is not None and mean_span < 1:
            raise UserError(
                f"ul2.denoisers (gin): the denoiser '{name}' ({mode}) has spans of {mean_span} "
                f"tokens and masks {density:g} of the tokens; expected spans of at least 1 token, "
                "and a share above 0 and below 1"
            )
    return read


def denoiser(name: str) -> Denoiser:
    """Returns a denoiser of the run's table. Its share is 0 if the table does not have it.

    Args:
      name: a name of UL2's table.

    Raises:
      UserError: gin's table has a mistake.
    """
    table = _read_settings().denoisers
    if table is None:
        return UL2[name]
    return Denoiser(*table[name]) if name in table else dataclasses.replace(UL2[name], share=0.0)


def mode_ids(name: str, vocabulary: seqio.Vocabulary) -> tuple[int, ...]:
    """Returns the token ids of a denoiser's mode token; several if a vocabulary splits it."""
    token = MODE_TOKENS[_read_settings().modes][denoiser(name).mode]
    return tuple(vocabulary.encode(token)) if token else ()


def denoise_with_mode(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature],
    *,
    name: str,
) -> tf.data.Dataset:
    """Makes a denoiser's examples from tokenized documents. The inputs begin with the mode token.

    T5's preprocessor gets a shorter input length, so that the mode token truncates no input.

    Args:
      dataset: documents `{"targets": int32 [tokens]}`.
      sequence_length: feature -> maximum number of tokens, including EOS.
      output_features: feature -> its vocabulary.
      name: the denoiser's name.
    """
    row = denoiser(name)
    ids = tf.constant(mode_ids(name, output_features["inputs"].vocabulary), tf.int32)
    lengths = {**sequence_length, "inputs": sequence_length["inputs"] - ids.shape[0]}
    examples = row.step(dataset, lengths, output_features, **row.parameters)

    def prepend(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        inputs = tf.cast(example["inputs"], tf.int32)
        return {**example, "inputs": tf.concat([ids, inputs], axis=0)}

    return examples.map(prepend, num_parallel_calls=tf.data.AUTOTUNE)


def denoiser_of(task: seqio.Task) -> str | None:
    """Returns the name of the denoiser of a task; None if the task has another objective."""
    for step in task.preprocessors:
        if isinstance(step, functools.partial) and step.func is denoise_with_mode:
            return step.keywords["name"]
    return None


def _share_of(name: str, task: seqio.Task) -> float:
    del task
    return denoiser(name).share


def denoiser_definitions(prefix: str, texts: FolderTexts | HubTexts) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for the denoisers over `texts`.

    Args:
      prefix: the prefix of the task names.
      texts: the documents.
    """
    source = TextSource(texts)
    append_eos = seqio.preprocessors.append_eos_after_trim
    return {
        f"{prefix}_ul2_{name}": pretraining_task(
            source,
            (functools.partial(denoise_with_mode, name=name), append_eos),
            ("inputs", "targets"),
        )
        for name in UL2
    }


def denoiser_mixtures(names: Mapping[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """Returns the mixture of each prefix: name -> (name of a denoiser's task, rate) of each.

    Args:
      names: the names of all tasks; those of other tasks are ignored.
    """
    mixtures: dict[str, list[tuple[str, Any]]] = {}
    for task in names:
        mixture, _, name = task.rpartition("_")
        if mixture.endswith("_ul2") and name in UL2:
            mixtures.setdefault(mixture, []).append((task, functools.partial(_share_of, name)))
    return mixtures


def describe_mode(task: seqio.Task) -> str | None:
    """Returns a note about the length of the mode token of a task; None if it has no mode token."""
    name = denoiser_of(task)
    count = len(mode_ids(name, task.output_features["inputs"].vocabulary)) if name else 0
    if not count:
        return None
    token = MODE_TOKENS[_read_settings().modes][denoiser(name).mode]
    return f"UL2's mode token {token} is {count} token{'s' * (count > 1)} of the vocabulary"
