"""The programs of docs/serving.md give the predictions and log-likelihoods of our engine."""

import itertools
import json
import re
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs ctranslate2: .ci/run transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import sentencepiece  # noqa: E402

from t0.checkpoints import ConversionOptions, convert, open_source  # noqa: E402
from t0.config.model_spec import Dropout, T5Spec  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.torch.evaluation import ShardedScorer  # noqa: E402
from t0.torch.generator import TorchGenerator  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from tests.checkpoints.tiny_checkpoints import model_shape, train_pieces, weights, write_mtf  # noqa: E402

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
CONVERTER, ENDPOINT = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
# More embeddings than the vocabulary has pieces, as T5's 32,128 for 32,100 pieces.
SHAPES = {
    "1.0": model_shape(vocabulary=192, decoder_layers=2, gated=False, tied=True),
    "1.1": model_shape(vocabulary=192),
}
CPU = torch.device("cpu")
EOS, LIMIT = 1, 12
WORDS = ["rain", "snow", "wind", "in", "7", "places", "and", "with", "\u00e9", "42"]


class Served:
    """A model in several formats, and 50 inputs with two choices each."""

    def __init__(self, kind, folder):
        shape = SHAPES[kind]
        self.pieces_file = train_pieces(folder)
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(self.pieces_file))
        self.checkpoint = open_source(write_mtf(folder / "mtf", varied(weights(shape)))).path
        options = ConversionOptions(tokenizer=self.pieces_file)
        convert(folder / "mtf", folder / "hf", to="hf", options=options)
        self.spec = T5Spec(shape, "gelu" if shape.gated else "relu", Dropout(), 0.0, 0.0, None)
        self.folder = folder
        rng = np.random.default_rng(7)
        lengths = [*rng.integers(1, 9, 49), 80]  # the last is longer than the exact buckets
        self.inputs = [" ".join(rng.choice(WORDS, length)) for length in lengths]
        self.choices = [rng.choice(WORDS, 2, replace=False).tolist() for _ in self.inputs]
        self.choices[3] = ["snow and wind in 7 places", "rain"]

    def translator(self, name):
        return ctranslate2.Translator(str(self.folder / name), device="cpu", compute_type=name)

    def tokens(self, text):
        return self.pieces.id_to_piece(self.pieces.encode(text))

    def their_scores(self, name):
        """CTranslate2's log-likelihoods [50, 2]; `score_batch` adds EOS to the choices."""
        sources = [self.tokens(text) for text in self.inputs for _ in range(2)]
        targets = [self.tokens(choice) for pair in self.choices for choice in pair]
        results = self.translator(name).score_batch(sources, targets)
        assert {result.tokens[-1] for result in results} == {"</s>"}
        return np.array([sum(result.log_probs) for result in results]).reshape(-1, 2)

    def our_scores(self):
        """Our log-likelihoods [50, 2]: inputs without EOS, choices with EOS."""
        scorer = ShardedScorer(self.spec, World(0, 1, CPU), torch.float32)
        scorer.restore(self.checkpoint)
        inputs = pad([self.pieces.encode(text) for text in self.inputs])
        ids = [[*self.pieces.encode(text), EOS] for pair in self.choices for text in pair]
        return scorer.log_likelihoods(inputs, pad(ids).reshape(len(inputs), 2, -1))

    def our_tokens(self):
        """Our greedy predictions, as CTranslate2's tokens without EOS."""
        generator = TorchGenerator(self.spec, CPU, torch.float32, DecodingMethod())
        generator.restore(self.checkpoint)
        inputs = pad([self.pieces.encode(text) for text in self.inputs])
        limits, draws = np.full(len(inputs), LIMIT), np.zeros((len(inputs), LIMIT), np.float32)
        ids, _ = generator.generate(inputs, limits, draws)
        names = json.loads((self.folder / "float32" / "shared_vocabulary.json").read_text())
        return [[names[i] for i in itertools.takewhile(lambda i: i != EOS, row)] for row in ids]


def varied(tensors):
    """Changes random weights in place, so that greedy predictions differ, and some end early."""
    if tied := "decoder/logits/kernel" not in tensors:
        for name, array in tensors.items():
            if name.startswith("decoder/block") and array.ndim == 2 and "bias" not in name:
                array *= 3
    output = tensors["shared/embedding"].T if tied else tensors["decoder/logits/kernel"]
    output[:, EOS] *= 1.5 if tied else 3
    return tensors


def pad(rows):
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


@pytest.fixture(scope="module", params=SHAPES)
def served(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    served = Served(request.param, folder)
    program = folder / "to_ctranslate2.py"
    program.write_text(CONVERTER)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("float32", "int8"):
            quantization = ["int8"] if name == "int8" else []
            words = [str(program), str(folder / "hf"), str(folder / name), *quantization]
            patch.setattr(sys, "argv", words)
            runpy.run_path(str(program))
    return served


def test_serving_log_likelihoods_equal_ours(served):
    ours = served.our_scores()
    assert ours.std() > 1
    assert np.abs(served.their_scores("float32") - ours).max() < 1e-4


def test_serving_greedy_predictions_equal_ours(served):
    expected = served.our_tokens()
    assert len(set(map(tuple, expected))) >= 20
    assert 10 <= sum(len(tokens) < LIMIT for tokens in expected) <= 40
    sources = [served.tokens(text) for text in served.inputs]
    results = served.translator("float32").translate_batch(
        sources, beam_size=1, max_decoding_length=LIMIT, min_decoding_length=0
    )
    assert [result.hypotheses[0] for result in results] == expected


def test_serving_int8_chooses_mostly_the_same(served, record_property):
    same = served.their_scores("int8").argmax(1) == served.our_scores().argmax(1)
    record_property("share_of_equal_answers", same.mean())
    print(f"int8: {same.mean():.0%} of {len(same)} answers are equal")
    assert same.mean() >= 0.9


@pytest.fixture
def ask(served):
    """Runs the page's server; returns a function that sends it a body."""
    program = served.folder / "serve.py"
    program.write_text(ENDPOINT)
    command = [sys.executable, str(program), str(served.folder / "float32"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        address = process.stdout.readline().decode().strip()

        def ask(body):
            try:
                with urllib.request.urlopen(address, data=body, timeout=60) as response:
                    return response.status, json.load(response)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        yield ask
        process.kill()


def test_serving_endpoint_answers(served, ask):
    scores = served.our_scores()
    for number in (0, 3, 49):
        text, choices = served.inputs[number], served.choices[number]
        status, answer = ask(json.dumps({"inputs": text, "choices": choices}).encode())
        assert status == 200
        assert answer["log_likelihoods"] == pytest.approx(scores[number], abs=1e-4)
        assert answer["prediction"] == choices[scores[number].argmax()]
    tokens = served.our_tokens()
    ended = next(number for number, row in enumerate(tokens) if 0 < len(row) < LIMIT)
    expected = {"prediction": served.pieces.decode(tokens[ended])}
    assert ask(json.dumps({"inputs": served.inputs[ended]}).encode()) == (200, expected)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"inputs": ""}', b'{"inputs": "a", "x": 1}']
)
def test_serving_endpoint_refuses_bad_requests(ask, body):
    status, answer = ask(body)
    assert status == 400
    assert answer["error"]
