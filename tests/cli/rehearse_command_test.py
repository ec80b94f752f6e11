"""`t0 rehearse` as users call it: a verdict and a status; runs that it does not cover."""

import json
from pathlib import Path

import pytest

from t0.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
RUN = [
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.small.gin",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    "--gin_file=mesh/v3-8.gin",
    "--gin_param=run.sequence_length = {'inputs': 1024, 'targets': 256}",
    "--gin_param=run.batch_size = ('tokens_per_batch', 65536)",
    "--gin_param=run.train_steps = 1000",
    "--gin_param=MIXTURE_NAME = 't0_train'",
]
V3_512 = ["--gin_file=mesh/v3-512.gin", "--gin_param=run.batch_size = ('tokens_per_replica', 2048)"]
TWO_CORES = "--gin_param=utils.tpu_mesh_shape.tpu_topology = '1x1'"


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For commands, which bind."""


@pytest.mark.slow
def test_rehearsal_of_two_cores_agrees_with_one_device(capsys):
    words = [
        TWO_CORES,
        "--gin_param=tpu_mesh_shape.model_parallelism = 2",
        "--gin_param=get_variable_dtype.activation_dtype = 'float32'",
    ]
    assert cli.main(["rehearse", "--steps=1", *RUN, *words]) == 0
    out = capsys.readouterr().out
    assert "1x1: mesh model:2, 2 virtual cores" in out
    assert cli.main(["plan", "--json", *RUN, *words]) == 0
    reason = json.loads(capsys.readouterr().out)["verdict"]["reason"]
    assert f"memory on the slice: {reason}" in " ".join(out.split())
    for change in ("num_layers: 8 -> 1", "num_heads: 6 -> 2", "length of inputs: 1024 -> 32"):
        assert change in out
    assert "a checkpoint of the pod, restored by both" in out
    assert "choices scored with it" in out
    assert "its perplexity over" in out
    assert "VERDICT: the cores' program and one device agree (float32, band 1e-06)" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps=0"], "--steps is 0; expected a whole number from 1"),
        (["--gin_param=run.model_type = 'lm'"], "a rehearsal covers encoder-decoders"),
        (["--data=nowhere"], "--data nowhere: there is no such folder"),
        (V3_512, "v3-512 has 512 cores, and a rehearsal takes up to 64"),
        (["--gin_param=tpu_mesh_shape.model_parallelism = 8"], "does not divide by 8"),
    ],
    ids=["no steps", "language model", "no folder", "too many cores", "heads"],
)
def test_rehearsal_refuses_unsupported_runs(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["rehearse", *RUN, *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
