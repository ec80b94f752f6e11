"""The line about a perplexity; whole runs are in tests/end_to_end."""

import math

from t0.scoring.perplexity import with_printed_perplexity

FOUND = {
    "global_step": 1200,
    "neg_log_perplexity": -math.log(8),
    "token_accuracy": 0.25,
    "sequence_accuracy": 0.125,
    "num_eval_tokens": 4096.0,
}


def test_perplexity_is_printed_and_returned_by_the_estimator(capsys):
    class Estimator:
        def __init__(self, given):
            self.given = given
            self.found = FOUND

        def evaluate(self, input_fn, *, name, steps):
            assert (input_fn, steps) == ("inputs", 2)
            return self.found

    estimator = with_printed_perplexity(lambda **keywords: Estimator(keywords))(mesh_shape="")
    assert estimator.given == {"mesh_shape": ""}
    assert estimator.evaluate("inputs", name="rte_validation_64", steps=2) is FOUND
    assert capsys.readouterr().out == (
        "rte_validation_64, step 1,200: 2.0794 nats a token, perplexity 8, "
        "token accuracy 25.0 %, 4,096 tokens\n"
    )
    estimator.found = {**FOUND, "neg_log_perplexity": -1e9}
    estimator.evaluate("inputs", name="x", steps=2)
    assert "perplexity 1.014e+304" in capsys.readouterr().out
