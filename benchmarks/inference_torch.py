"""Our PyTorch engine's side of inference.py; needs torch, transformers and this project's packages.

Started as `inference_torch.py THREADS`; speaks JSON lines (see inference.py). The first line sets
the model and the inputs, each further line asks for a measurement. The weights are Transformers'
random ones, except that the logit of EOS is the lowest, so that each example takes every step.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch_runs  # noqa: E402
import transformers_t5  # noqa: E402
from transformers import T5ForConditionalGeneration  # noqa: E402
from workers import token_rates  # noqa: E402

from t0.config.model_spec import require_t5  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.inference.inputs import EOS  # noqa: E402
from t0.torch.generator import TorchGenerator  # noqa: E402


class Predictor:
    """Predicts as mode `infer` of the PyTorch engine does."""

    def __init__(self, question: dict) -> None:
        batch, inputs, targets = (question[name] for name in ("batch", "inputs", "targets"))
        self._most = np.full(batch, targets, np.int32)
        self._draws = np.zeros((batch, targets), np.float32)
        self._inputs = np.random.default_rng(0).integers(3, 32000, (batch, inputs), np.int32)
        lengths = {"inputs": inputs, "targets": targets}
        self._generator = TorchGenerator(
            require_t5(torch_runs.run("small", rows=batch, lengths=lengths).model),
            torch.device("cpu"),
            getattr(torch, question["dtype"]),
            DecodingMethod(beam_size=question["beams"], alpha=0.0),
        )
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(transformers_t5.config("small"))
        with torch.no_grad():
            model.lm_head.weight[EOS] = 0.0
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self._generator.restore(folder)

    def measure(self) -> dict[str, float]:
        """Predicts the batch once."""
        return token_rates(
            lambda: self._generator.generate(self._inputs, self._most, self._draws)[0], EOS
        )


def main() -> None:
    """Answers questions until there are no more."""
    torch.set_num_threads(int(sys.argv[1]))
    predictor = Predictor(json.loads(sys.stdin.readline()))
    predictor.measure()
    print("\n{}", flush=True)
    for _ in sys.stdin:
        print("\n" + json.dumps(predictor.measure()), flush=True)


if __name__ == "__main__":
    main()
