"""The model that evaluates or predicts, on any engine.

    # `model` comes from a function of type `OpenModel`
    plan = model.plan(tasks, limits, checkpoint=path, most_shapes=24)
    model.restore(path)
    model.score(batch)                                  # log-likelihoods of choices [B, C], in nats
    model.close()

A model is opened for one ability, because an engine may lay out its weights differently for each:
PyTorch's processes share the weights to score, and each process has all weights to generate.
Everything else, such as records, batches, metrics and files, does not depend on the engine.

Legend: B inputs of a batch, C choices of an input, L input tokens, T target tokens.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from t0.evaluation.batching import BatchLimits, BatchPlan, ScoringBatch
from t0.evaluation.ranked_examples import ScoringTask


class Ability(enum.Enum):
    """The ability for which a model is opened."""

    SCORE = "score"
    GENERATE = "generate"
    MEASURE = "measure"


@dataclasses.dataclass(frozen=True)
class DecodingMethod:
    """The method by which a decoder chooses tokens.

    Attributes:
      beam_size: the number of beams; 1 for greedy search or sampling.
      alpha: the exponent of the length penalty. Finished beams are compared by
        score / ((5 + tokens with EOS) / 6) ** alpha, as in GNMT (arXiv:1609.08144, equation 14,
        without coverage) and in Mesh TensorFlow.
      temperature: the number by which logits are divided before a token is drawn; 0 if the most
        likely token is taken instead of a draw.
      top_k: the number of most likely tokens among which a token is drawn; 0 for all tokens.
    """

    beam_size: int = 1
    alpha: float = 0.6
    temperature: float = 0.0
    top_k: int = 0


GREEDY = DecodingMethod()


class Model(Protocol):
    """A model with the methods of one ability.

    If several processes compute together, all of them call the methods in the same order.

    Attributes:
      replicas: a number that must divide the batch size B.
      device_kind: "cpu" or "gpu".
    """

    replicas: int
    device_kind: str

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint; returns the number of variables."""

    def close(self) -> None:
        """Frees the weights."""

    def plan(
        self,
        tasks: Sequence[ScoringTask],
        limits: BatchLimits,
        *,
        checkpoint: str,
        most_shapes: int,
    ) -> BatchPlan:
        """Plans the batches that are scored, in the layout that the engine needs.

        Args:
          tasks: all tasks.
          limits: the limits of a batch.
          checkpoint: a checkpoint, from which the costs of a computation may be read.
          most_shapes: the maximum number of batch shapes, for an engine with static shapes.
        """

    def score(self, batch: ScoringBatch) -> np.ndarray:
        """Returns the log-likelihood of each choice given its input, in nats, float32 [B, C].

        The log-likelihoods of a choice's tokens and its EOS are summed.
        """

    def generate(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Generates tokens by the method for which the model was opened.

        Args:
          inputs: int [B, L]; 0 is padding.
          limits: int [B], the maximum number of tokens to generate for each row; 0 for a padding
            row.
          draws: float [B, T], uniform random numbers in [0, 1), which only sampling uses. T is not
            less than any limit.

        Returns:
          (tokens, scores). The tokens, int32 [B, T], are each row's tokens up to EOS or the row's
          limit, followed by zeros. The scores, float32 [B], are the sums of the tokens'
          log-probabilities in nats.
        """

    def measure(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns sums over padded examples [B, L]. `perplexity.SUMS` names the first of them."""


class OpenModel(Protocol):
    """A function that opens the model of a run."""

    def __call__(
        self,
        ability: Ability,
        *,
        dtype: str,
        method: DecodingMethod = GREEDY,
        features: Sequence[str] = (),
    ) -> Model:
        """Opens the model, without weights.

        Args:
          ability: the ability that is needed.
          dtype: the type of activations, "float32" or "bfloat16".
          method: the method by which tokens are generated.
          features: the features of batches that are measured.
        """
