"""Defines the model of a run as plain data: a T5's sizes, activation, dropout rates and loss.

    spec.model.t5.sizes.d_model             # `spec` is a `t0.config.specification.RunSpec`
    require_t5(spec.model).activation       # raises an error if the model is not a T5

`t0.mesh.t5_model` reads these numbers from the model that Mesh TensorFlow builds.
`t0.checkpoints.shape` reads the sizes from a checkpoint's tensors.
"""

import dataclasses
import math
from typing import Annotated, Literal

from t0.config.plain_data import Positive, Range
from t0.errors import UserError

Activation = Literal["relu", "gelu", "silu"]
_Rate = Annotated[float, Range(0, math.nextafter(1, 0))]  # below 1

# A letter in `t0.checkpoints.names.TensorNames.dims` -> the field of `ModelShape` with its size.
SIZES = dict(
    zip("VDIFHB", ("vocabulary", "d_model", "inner", "d_ff", "heads", "buckets"), strict=True)
)


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """The dimensions of a T5.

    Attributes:
      vocabulary: number of embeddings, including padding.
      d_model: size of the model dimension.
      d_ff: size of the feed-forward dimension.
      inner: number of heads times the key size of a head.
      heads: number of attention heads.
      buckets: number of relative position buckets.
      encoder_layers: number of encoder blocks.
      decoder_layers: number of decoder blocks.
      gated: whether the feed-forward layer has two input matrices (T5 1.1).
      tied: whether the embedding is also the output matrix (T5 1.0).
      shared_bias: whether all blocks of a stack use the first block's relative attention bias.
    """

    vocabulary: Positive
    d_model: Positive
    d_ff: Positive
    inner: Positive
    heads: Positive
    buckets: Positive
    encoder_layers: Positive
    decoder_layers: Positive
    gated: bool
    tied: bool
    shared_bias: bool

    @property
    def d_kv(self) -> int:
        """The key size of one head."""
        return self.inner // self.heads

    @property
    def usual_activation(self) -> Activation:
        """The activation of T5's published models with this kind of feed-forward layer."""
        return "gelu" if self.gated else "relu"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each letter in `names.TensorNames.dims`."""
        return {letter: getattr(self, field) for letter, field in SIZES.items()}


@dataclasses.dataclass(frozen=True)
class Dropout:
    """The dropout rates of a T5.

    Attributes:
      residual: the rate for the embeddings, the output of each layer, and the output of each stack.
      attention: the rate for the attention weights.
      hidden: the rate for the hidden values of feed-forward layers.
    """

    residual: _Rate = 0.0
    attention: _Rate = 0.0
    hidden: _Rate = 0.0


@dataclasses.dataclass(frozen=True)
class T5Spec:
    """The settings of a T5: T5 1.0, T5 1.1, an LM-adapted model or mT5.

    Attributes:
      sizes: the sizes of the model's tensors.
      activation: the activation of feed-forward layers. With "relu", the layers are not gated; with
        "gelu" or "silu", they are gated.
      dropout: the dropout rates.
      label_smoothing: the part of the target's probability that is taken from the target and spread
        evenly over all tokens.
      z_loss: the factor of the z-loss. The z-loss is the square of the logarithm of the softmax's
        denominator.
      loss_denominator: the number by which the summed loss is divided; None to divide by the number
        of target positions in the batch.
      legacy_norms: whether norms have their older names in the model's Mesh TensorFlow checkpoints.
    """

    sizes: ModelShape
    activation: Activation
    dropout: Dropout
    label_smoothing: _Rate
    z_loss: _Rate
    loss_denominator: Annotated[float, Range(math.ulp(0), math.inf)] | None
    legacy_norms: bool = False


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """The model of a run.

    Attributes:
      t5: the settings of the model; None if it is not one of T5's own models.
      other: the first setting by which the model differs from T5's own models, with the value that
        T5 has; "" if it does not differ.
      activations: the activation type.
      weights: the type of weights in checkpoints.
    """

    t5: T5Spec | None
    other: str
    activations: str
    weights: str


def require_t5(spec: ModelSpec) -> T5Spec:
    """Returns the settings of a T5.

    Raises:
      UserError: if the PyTorch engine does not compute the model. The message names the setting.
    """
    if spec.t5 is None:
        raise UserError(
            f"{spec.other}. The PyTorch engine does not compute this; Mesh TensorFlow does: "
            "t5_mesh_transformer without --engine=torch"
        )
    sizes = spec.t5.sizes
    if sizes.inner % sizes.heads or sizes.gated == (spec.t5.activation == "relu"):
        raise UserError(
            f"the specification's model contradicts itself: {sizes.heads} heads of together "
            f"{sizes.inner}, activation {spec.t5.activation}, gated {sizes.gated}. Write it again "
            "with t5_mesh_transformer --save_spec"
        )
    return spec.t5
