"""SentencePiece models of a few dozen pieces, trained in milliseconds."""

import io

TEXT = "the sun rain sad glad both day is this that wind we say yes no not it was good bad a"


def train_model(path, seed):
    """Trains a SentencePiece model with T5's settings at `path`, other pieces for another seed."""
    import random

    import t5_pieces

    draw, words = random.Random(seed), TEXT.split()
    text = (" ".join(draw.choices(words, k=8)) + "." for _ in range(200))
    model = io.BytesIO()
    t5_pieces.train(sentence_iterator=text, model_writer=model, vocab_size=36 + seed)
    path.write_bytes(model.getvalue())
    return path


def with_sentinels(source, path):
    """Writes the edition of a model that holds T5's 100 sentinels."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(source.read_bytes())
    for number in reversed(range(100)):
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=4)
    path.write_bytes(model.SerializeToString())
    return path
