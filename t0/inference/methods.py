"""Describes a decoding method for any engine: greedy search, sampling or beam search.

DecodingMethod(beam_size=4)                            # beams, compared by GNMT's length penalty
DecodingMethod(temperature=0.7, top_k=40)              # draws
"""

import dataclasses

EOS = 1
# A score that is less than any sum of log-probabilities.
NEVER = -1e9


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
