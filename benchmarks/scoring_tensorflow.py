"""The TensorFlow side of scoring.py: our scoring and Mesh TensorFlow's.

Started as `scoring_tensorflow.py THREADS FOLDER DATA VOCAB`; speaks JSON lines (see scoring.py).
The first question loads the model and the data, and each further question asks for a measurement.
Writes the token ids of the scored choices to FOLDER/<dataset>.json, for the scorer in the other
environment.
"""

import collections
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

from t0 import compat  # noqa: E402

compat.apply()

import gin  # noqa: E402
import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402
from product_rate import product_rate  # noqa: E402
from random_weights import random_checkpoint  # noqa: E402

from t0.config import parse  # noqa: E402
from t0.evaluation import ranking  # noqa: E402
from t0.evaluation.batching import BatchLimits, model_costs, plan_packed  # noqa: E402
from t0.evaluation.mesh_model import Placement  # noqa: E402
from t0.evaluation.ranked_examples import count_task  # noqa: E402
from t0.evaluation.records import prompted_records, sort_records  # noqa: E402
from t0.evaluation.scorer import MeshScorer  # noqa: E402
from t0.evaluation.task_records import rank_task_facts  # noqa: E402

LIMITS = {"inputs": 1024, "targets": 256}
VOCABULARY = 32128
MESH_BATCH = 8


def read_tasks(question: dict[str, Any]) -> list[Any]:
    """Reads the first examples of each prompt."""
    import seqio

    import t0.seqio_tasks  # noqa: F401

    names = [n for n in seqio.TaskRegistry.names() if re.fullmatch(question["tasks"], n)]

    def read(name: str) -> Any:
        task, most = seqio.TaskRegistry.get(name), question["examples"] or sys.maxsize
        read = prompted_records(task.source, "validation", task.output_features)
        few = itertools.takewhile(lambda record: record.example < most, read.records)
        return count_task(rank_task_facts(name, "validation"), sort_records(few), LIMITS)

    return [read(name) for name in sorted(names)]


def build_model() -> Any:
    """Returns T5.1.1 small."""
    types = [f"get_variable_dtype.{t}_dtype = 'float32'" for t in ("master", "slice", "activation")]
    parse.parse(["models/t5.1.1.small.gin"], ["dropout_rate = 0.0", *types])
    return mesh_utils.build_model(
        input_vocab_size=VOCABULARY, output_vocab_size=VOCABULARY, layout_rules="", mesh_shape=""
    )


class Ours:
    """Scores like `score_eval`."""

    def __init__(self, question: dict[str, Any], folder: Path) -> None:
        self._tasks = read_tasks(question)
        self._groups = self._write(folder / f"{question['dataset']}.json")
        checkpoint, shapes = random_checkpoint(build_model(), str(folder))
        self._costs = model_costs(shapes)
        self._attention_widths = [
            sum(shape[-1] for name, shape in shapes.items() if re.search(queries, name))
            for queries in ("^encoder/.*SelfAttention/q$", "^decoder/.*EncDecAttention/q$")
        ]
        self._logits = 2.0 * np.prod(shapes["decoder/logits/kernel"])
        dtype = tf.as_dtype(question["dtype"])
        self._scorer = self._make(mtf.VariableDType(tf.float32, dtype, dtype))
        self._scorer.restore(checkpoint)
        self._dtype = question["dtype"]
        limits = BatchLimits(ranking.MAX_TOKENS["cpu"], ranking.MAX_LOGITS["cpu"] // VOCABULARY)
        most = ranking.RankEvaluationSettings().max_shapes
        self._plan = plan_packed(self._tasks, self._costs, limits, most_shapes=most)
        print(self._plan.described, file=sys.stderr)
        self.first = self._pass()

    def _write(self, path: Path) -> list[dict[str, Any]]:
        examples = []
        for task in self._tasks:
            for example in task.examples():
                inputs = example.choices[0].inputs.tolist()
                choices = [choice.tokens.tolist() for choice in example.choices]
                examples.append({"inputs": inputs, "targets": choices})
        path.write_text(json.dumps(examples))
        return examples

    def _make(self, types: mtf.VariableDType) -> MeshScorer:
        placement = Placement(mtf.convert_to_shape(""), mtf.convert_to_layout_rules(""), [""])
        return MeshScorer(build_model(), types, placement)

    def _pass(self) -> float:
        started = time.perf_counter()
        names = [task.name for task in self._tasks]
        scored = ranking.score_tasks(
            self._scorer, self._tasks, self._plan, task_names=names, tick=lambda *_: None
        )
        collections.deque(scored, maxlen=0)
        return time.perf_counter() - started

    def measure(self) -> dict[str, float]:
        """Scores everything once."""
        processor = time.process_time()
        seconds = self._pass()
        processor = time.process_time() - processor
        choices = sum(len(group["targets"]) for group in self._groups)
        arithmetic = sum(
            self._flop(len(group["inputs"]), sum(map(len, group["targets"])))
            for group in self._groups
        )
        return {
            "choices_per_second": choices / seconds,
            "per_processor_second": choices / processor,
            "with_lowering": choices / self.first,
            "gflops": arithmetic / seconds / 1e9,
            "ceiling": self._ceiling(arithmetic),
            "shapes": len(self._plan.shapes),
            "padding": self._plan.padding,
            "flop_per_choice": arithmetic / choices,
        }

    def _flop(self, inputs: int, targets: int) -> float:
        """Returns the FLOPs of an input and its choices, including attention between tokens."""
        tokens = inputs * self._costs.input_token + targets * self._costs.target_token
        encoder, decoder = self._attention_widths
        return tokens + 4.0 * inputs * (inputs * encoder + targets * decoder)

    def _ceiling(self, arithmetic: float) -> float:
        """Returns the rate of the same FLOPs as large products, with logits in float32."""
        tokens = sum(len(target) for group in self._groups for target in group["targets"])
        logits = tokens * self._logits / arithmetic
        rates = product_rate("float32"), product_rate(self._dtype)
        return 1 / (logits / rates[0] + (1 - logits) / rates[1])


class Mesh:
    """Scores with the program that Mesh TensorFlow's estimator runs in its scoring mode."""

    def __init__(self, question: dict[str, Any], folder: Path) -> None:
        units = json.loads((folder / f"{question['dataset']}.json").read_text())
        pairs = [(u["inputs"], target) for u in units for target in u["targets"]]
        step = max(1, len(pairs) // (question["mesh_batches"] * MESH_BATCH))
        self._pairs = pairs[::step][: question["mesh_batches"] * MESH_BATCH]
        graph = tf.Graph()
        with graph.as_default():
            self._features = {
                name: tf.placeholder(tf.int32, [MESH_BATCH, length], name=name)
                for name, length in LIMITS.items()
            }
            spec = self._model_fn()(self._features, None, tf.estimator.ModeKeys.PREDICT, {})
            self._scores = spec.predictions["scores"]
            self._session = tf.Session()
            self._session.run(tf.global_variables_initializer())
        self._run(self._pairs[:MESH_BATCH])

    def _model_fn(self) -> Any:
        return mesh_utils.tpu_estimator_model_fn(
            model_type="bitransformer",
            transformer_model=build_model(),
            vocabulary=None,
            model_dir="",
            use_tpu=False,
            mesh_shape=mtf.convert_to_shape(""),
            layout_rules=mtf.convert_to_layout_rules(""),
            mesh_devices=[""],
            batch_size=MESH_BATCH,
            sequence_length=LIMITS,
            autostack=False,
            keep_checkpoint_max=None,
            save_checkpoints_steps=1000,
            score_in_predict_mode=True,
        )

    def _run(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        feed = {}
        for position, (name, length) in enumerate(LIMITS.items()):
            rows = [pair[position] + [0] * (length - len(pair[position])) for pair in pairs]
            feed[self._features[name]] = np.array(rows, np.int32)
        self._session.run(self._scores, feed)

    def measure(self) -> dict[str, float]:
        """Scores a few batches."""
        started, processor = time.perf_counter(), time.process_time()
        for start in range(0, len(self._pairs), MESH_BATCH):
            self._run(self._pairs[start : start + MESH_BATCH])
        seconds = time.perf_counter() - started
        return {
            "choices_per_second": len(self._pairs) / seconds,
            "per_processor_second": len(self._pairs) / (time.process_time() - processor),
            "ceiling": product_rate("float32"),
        }


def main() -> None:
    """Answers questions until there are no more."""
    _, _, folder, data, vocabulary = sys.argv
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    from t0.sources import set_data_dirs
    from t0.tasks import set_vocabulary

    set_data_dirs([data])
    set_vocabulary(vocabulary)
    question = json.loads(sys.stdin.readline())
    scorer = {"ours": Ours, "mesh": Mesh}[question["scorer"]](question, Path(folder))
    print("\n{}", flush=True)
    for _ in sys.stdin:
        print("\n" + json.dumps(scorer.measure()), flush=True)
    gin.clear_config()


if __name__ == "__main__":
    main()
