"""Small caches in SeqIO's layout, and their data, without SeqIO."""

import json

import numpy as np

from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
from t0.files import tf_examples, tfrecord

LENGTHS = {"inputs": 16, "targets": 8}
RATES = {"toy_a": 3.0, "toy_b": 1.0}
COUNTS = {"toy_a": 60, "toy_b": 31}


def write(folder, name, count, shards=3):
    """Writes a cache; the first input of record n of the split, in order, is n + 2."""
    path = folder / name
    path.mkdir(parents=True)
    rng = np.random.default_rng(count)
    ends = [count * shard // shards for shard in range(shards + 1)]
    for shard in range(shards):
        frames = []
        for number in range(ends[shard], ends[shard + 1]):
            ids = {n: rng.integers(100, 199, rng.integers(1, 12)).tolist() for n in LENGTHS}
            ids["inputs"][0] = number + 2
            text = tf_examples.bytes_entry("inputs_pretokenized", [f"{name} {number}.".encode()])
            entries = tf_examples.ints_entry("inputs", ids["inputs"]) + text
            entries += tf_examples.ints_entry("targets", ids["targets"])
            frames.append(tfrecord.framed(tf_examples.example(entries)))
        file = path / f"train.tfrecord-{shard:05d}-of-{shards:05d}"
        file.write_bytes(b"".join(frames))
    (path / "stats.train.json").write_text(json.dumps({"examples": count}))
    (path / "COMPLETED").write_text("")


def data_spec(folder, **changes):
    """Returns the specification of data whose caches it writes if the folder has none."""
    tasks = []
    for name, count in COUNTS.items():
        if not (folder / name).exists():
            write(folder, name, count)
        files = tuple(str(file) for file in sorted((folder / name).glob("*.tfrecord-*")))
        features = {feature: FeatureSpec(feature == "targets") for feature in LENGTHS}
        tasks.append(TaskSpec(name, RATES[name], features, count, files))
    fields = {"seed": 3, "window_rows": 40, "use_cached": True, **changes}
    return DataSpec("toy", "train", tuple(tasks), LENGTHS, **fields)
