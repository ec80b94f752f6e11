"""How many exemplars fit into the context window of a model of transformers."""

import pytest

from t0.run.transformers_evaluation import text_measure


class DecoderOnly:
    """A model whose tokens are words, and which reads 10 of them, choices included."""

    def encode(self, inputs, choice):
        return inputs.split(), choice.split()

    def excess(self, context, scored):
        return "too many" * (context + scored - 1 > 10)


@pytest.mark.parametrize(
    ("words", "lengths", "fits"),
    [
        (9, None, True),  # the longest choice has 2 words
        (10, None, False),
        (9, {"inputs": 9, "targets": 2}, True),
        (9, {"inputs": 8, "targets": 2}, False),
        (10, {"inputs": 100, "targets": 100}, False),
    ],
)
def test_input_and_longest_choice_share_the_context_window(words, lengths, fits):
    measure = text_measure(DecoderOnly(), lengths)
    assert measure.count("a b c") == 3
    assert measure.fits("a " * words, ["yes", "not really"]) == fits
