"""A feed-forward layer of your own for Mesh TensorFlow's transformer: the square of ReLU.

The activation is that of Primer (https://arxiv.org/abs/2109.08668). gin binds the layer in run.gin.
"""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import transformer


@gin.configurable
class SquaredReluDense(transformer.TransformerLayer):
    """Computes square(relu(x A)) B for each token, with the weights A and B.

    Args:
      hidden_size: the number of hidden values of a token.
      dropout_rate: the dropout rate of the hidden values in training.
    """

    def __init__(self, hidden_size: int = gin.REQUIRED, dropout_rate: float = 0.0) -> None:
        self.hidden_size = hidden_size
        self.dropout_rate = dropout_rate

    def call(
        self, context: transformer.Context, x: mtf.Tensor, losses: list[mtf.Tensor] | None = None
    ) -> mtf.Tensor:
        """Returns the layer's output for x [batch, length, d_model], in the same shape."""
        # A mesh can split the dimension "d_ff" over devices (run.layout_rules).
        d_model, d_ff = x.shape.dims[-1], mtf.Dimension("d_ff", self.hidden_size)
        types = {"use_bias": False, "variable_dtype": context.variable_dtype}
        hidden = mtf.square(mtf.relu(mtf.layers.dense(x, d_ff, name="wi", **types)))
        if context.train and self.dropout_rate:
            hidden = mtf.dropout(
                hidden,
                context.train,
                rate=self.dropout_rate,
                noise_shape=hidden.shape - context.length_dim,
            )
        return mtf.layers.dense(hidden, d_model, name="wo", **types)
