"""The decoding method for any engine: greedy search, sampling or beam search, as plain numbers.

DecodingMethod(beam_size=4)                            # beams, compared by GNMT's length penalty
DecodingMethod(temperature=0.7, top_k=40)              # draws
"""

import dataclasses

EOS = 1
# Less than any sum of log-probabilities.
NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class DecodingMethod:
    """How tokens are chosen.

    Attributes:
      beam_size: the number of beams; 1 for greedy search or sampling.
      alpha: finished beams are compared by score / ((5 + their tokens with EOS) / 6) ** alpha, with
        the length penalty of GNMT (arXiv:1609.08144, equation 14, without coverage) and Mesh
        TensorFlow.
      temperature: 0 to take the most likely token; otherwise logits are divided by it and tokens
        are drawn.
      top_k: draw from this many of the most likely tokens; 0 for all.
    """

    beam_size: int = 1
    alpha: float = 0.6
    temperature: float = 0.0
    top_k: int = 0
