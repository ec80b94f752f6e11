"""Mode `perplexity_eval`: prints the perplexity of each task and checkpoint.

    weather_which_word_validation_32, step 20: perplexity 3.31 (1.1970 nats a token), token accuracy
    54.2 %, sequence accuracy 12.5 %, 96 tokens

Mesh TensorFlow measures it with an estimator, and logs only the negative logarithm.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any


def with_printed_perplexity(get_estimator: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that builds the same estimator, whose `evaluate` also prints its results.

    Args:
      get_estimator: Mesh TensorFlow's function.
    """

    def build(**keywords: Any) -> Any:
        estimator = get_estimator(**keywords)
        published = estimator.evaluate

        def evaluate(*args: Any, name: str | None = None, **rest: Any) -> Mapping[str, Any]:
            found = published(*args, name=name, **rest)
            print(line(name or "evaluation", found), flush=True)
            return found

        estimator.evaluate = evaluate
        return estimator

    return build


def line(name: str, found: Mapping[str, float]) -> str:
    """Returns the line about one evaluation.

    Args:
      name: Mesh TensorFlow's name of it: task, split, and the configured number of examples.
      found: the estimator's results.
    """
    nats = -found["neg_log_perplexity"]
    # A broken model's nats can be so many that `exp` would overflow.
    perplexity = math.exp(min(nats, 700.0))
    return (
        f"{name}, step {found['global_step']:,}: perplexity {perplexity:.4g} "
        f"({nats:.4f} nats a token), token accuracy {100 * found['token_accuracy']:.1f} %, "
        f"sequence accuracy {100 * found['sequence_accuracy']:.1f} %, "
        f"{found['num_eval_tokens']:,.0f} tokens"
    )
