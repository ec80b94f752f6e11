"""The tiny T5 as a folder of transformers, which is scored and decoded as other models are there.

`t0.torch.transformers_model` has each id plus 1 in its arrays, because 0 is padding there.
"""

import tempfile

import numpy as np
import tokenizers
import torch
import transformers

from t0.checkpoints.bundle import BundleReader
from t0.torch.pretrained_folder import PretrainedFolder
from t0.torch.processes import World
from t0.torch.transformers_model import TransformersModel
from tests.evaluation.evaluation_transformers_test import hf_model


class TransformersT5:
    """A `TransformersModel` of the variables of a Mesh TensorFlow checkpoint."""

    replicas = 1
    device_kind = "cpu"

    def restore(self, checkpoint):
        with BundleReader(checkpoint) as reader, tempfile.TemporaryDirectory() as folder:
            names = [name for name in reader.entries if name != "global_step"]
            hf_model({name: reader.load(name) for name in names}, layers=2).save_pretrained(folder)
            words = {"<pad>": 0, "</s>": 1, **{f"w{n}": n for n in range(2, 128)}}
            tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))
            transformers.PreTrainedTokenizerFast(
                tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>"
            ).save_pretrained(folder)
            world = World(0, 1, torch.device("cpu"))
            self._model = TransformersModel(PretrainedFolder(folder), world, torch.float32, 4096)
            return self._model.restore(folder)

    def close(self):
        self._model.close()

    def plan(self, tasks, limits, **options):
        return TransformersModel.plan(None, tasks, limits, **options)

    def score(self, batch):
        return self._model.log_likelihoods(*map(_plus_one, batch.lay_out()))

    def generate(self, inputs, limits, draws):
        tokens, scores = self._model.generate(_plus_one(inputs), limits, draws)
        return np.maximum(tokens - 1, 0), scores

    def measure(self, batch):
        return self._model.measure({name: _plus_one(rows) for name, rows in batch.items()})


def open_model(ability, **options):
    """Opens the model, without weights."""
    return TransformersT5()


def _plus_one(ids):
    return np.where(ids > 0, ids + 1, 0)
