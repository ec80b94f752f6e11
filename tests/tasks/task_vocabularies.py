"""SentencePiece models of a few dozen pieces, trained in milliseconds."""

import random

from t0 import testing

TEXT = "the sun rain sad glad both day is this that wind we say yes no not it was good bad a"


def train_model(path, seed):
    """Trains a model at `path`, other pieces for another seed."""
    draw, words = random.Random(seed), TEXT.split()
    text = (" ".join(draw.choices(words, k=8)) + "." for _ in range(200))
    return testing.train_vocabulary(path, text, size=36 + seed)
