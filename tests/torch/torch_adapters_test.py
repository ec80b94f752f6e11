"""Adapters on PyTorch: training on a frozen base, checkpoints of the adapter alone, bad input."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.torch.engine_world import losses, message

torch = pytest.importorskip("torch")

LORA = {"method": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.1, "projections": ["q", "wi_1"]}
ADAPTERS = {"ia3": {"method": "ia3"}, "lora": LORA}
ADAPTED = {"ia3": ("/k", "/v", "/wo/kernel"), "lora": ("/q", "/wi_1/kernel")}


def weights(path, **given):
    """Canonical name -> weight of a checkpoint in any format."""
    from t0.checkpoints import open_source

    with contextlib.closing(open_source(path, keep_slots=False, **given)) as source:
        return {name: source.load(name) for name in source.entries}


def adapt(world, trained, name, steps, method, processes=1, **changes):
    """Trains an adapter of the trained model to a step."""
    changes = {"adapter": ADAPTERS[method], "init_checkpoint": str(trained["hf"])} | changes
    spec = world.specified(world.folder / name, steps, **changes)
    return world.torch(spec, processes=processes)


@pytest.mark.parametrize(
    ("method", "processes"),
    [
        ("lora", 1),
        pytest.param("ia3", 1, marks=pytest.mark.exhaustive),
        pytest.param("lora", 2, marks=pytest.mark.exhaustive),
        ("ia3", 2),
    ],
)
def test_adapter_training_freezes_the_base_and_resumes_bit_for_bit(
    world, trained, method, processes
):
    whole, halves = (f"adapter {method} {processes} {part}" for part in ("whole", "halves"))
    runs = [(whole, 6), (halves, 3), (halves, 6)]
    for name, steps in runs:
        done = adapt(
            world, trained, name, steps, method, processes, microbatches=2, save_checkpoints_steps=3
        )
        assert done.returncode == 0, done.stderr
    assert f"adapter: {method}, " in done.stdout
    assert "restored " in done.stdout and "torch.ckpt-3, step 3" in done.stdout
    folders = [world.folder / name / "torch.ckpt-6" for name in (whole, halves)]
    assert losses(world.folder / whole) == losses(world.folder / halves)
    first, second = (folder / "adapter_model.safetensors" for folder in folders)
    from safetensors.numpy import load_file

    tensors = load_file(first)
    for key, array in load_file(second).items():
        assert np.array_equal(array, tensors[key]), key
    base, merged = weights(trained["hf"]), weights(folders[0])
    changed = {name for name in base if not np.array_equal(base[name], merged[name])}
    assert changed == {name for name in base if name.endswith(ADAPTED[method])}
    # The checkpoint has the adapter's weights and their slots only.
    bytes_ = sum(path.stat().st_size for path in folders[0].iterdir())
    assert bytes_ < 0.5 * sum(array.nbytes for array in base.values())


def test_adapter_training_lowers_the_loss(world, trained):
    base = world.folder / "adapter base of one step"
    assert world.torch(world.specified(base, 1)).returncode == 0
    everywhere = {"method": "lora", "projections": ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]}
    # Adafactor would scale the updates by the weights, and LoRA's second matrix starts at 0.
    parameters = {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8, "weight_decay_rate": 0.0}
    parameters |= {"rms_clipping_threshold": None, "multiply_by_parameter_scale": False}
    parameters |= {"exclude_from_weight_decay": [], "offset": 0}
    optimizer = {"selector": "t0.AdamWOptimizer", "parameters": parameters}
    changes = {"adapter": everywhere, "init_checkpoint": str(base), "schedule": 0.01}
    changes["optimizer"] = optimizer
    done = adapt(world, trained, "adapter learns", 40, "lora", **changes)
    assert done.returncode == 0, done.stderr
    found = losses(world.folder / "adapter learns")
    assert np.mean([found[step] for step in range(31, 41)]) < 0.8 * found[1]


def test_adapter_is_exported_merged(world, trained):
    name, hf = "adapter exported", world.folder / "adapter export"
    changes = {"adapter": LORA, "init_checkpoint": str(trained["hf"])}
    spec = world.specified(world.folder / name, 2, **changes)
    done = world.torch(spec, f"--export_hf={hf}")
    assert done.returncode == 0, done.stderr
    merged, exported = weights(world.folder / name), weights(hf)
    assert all(np.array_equal(merged[key], exported[key]) for key in merged)
    done = world.torch(spec, f"--export_mtf={world.folder}/nothing")
    assert "--export_mtf is for whole models" in message(done)


def test_adapter_on_another_base_is_refused(world, trained):
    name = "adapter base"
    assert adapt(world, trained, name, 1, "ia3").returncode == 0
    other = world.folder / "another base"
    shutil.copytree(trained["hf"], other)
    tensors = weights(other)
    from safetensors.numpy import load_file, save_file

    stored = load_file(other / "model.safetensors")
    key = "encoder.block.0.layer.0.SelfAttention.o.weight"
    stored[key] = stored[key] + np.float32(1e-6)
    save_file(stored, other / "model.safetensors", {"format": "pt"})
    assert tensors.keys() == weights(other).keys()
    done = adapt(world, trained, name, 2, "ia3", init_checkpoint=str(other))
    line = message(done)
    assert f"is for the base {trained['hf']} (hash " in line
    assert f"not for {other}: encoder/block_000/layer_000/SelfAttention/o differs" in line
    from t0.errors import UserError

    folder = world.folder / name / "torch.ckpt-1"
    with pytest.raises(UserError, match="is for the base .* not for .*another base"):
        weights(folder, base=other)


BAD = {
    "rank": ({"rank": 999}, "t0.adapter.rank is 999, but q has only 128 dimensions"),
    "projection": ({"projections": ["wi"]}, "t0.adapter.projections has 'wi', which this model"),
    "method": ({"method": "prompt"}, "adapter.method is 'prompt'; expected 'ia3' or 'lora'"),
    "number": ({"rank": 0}, "adapter.rank is 0; expected a whole number from 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_adapter_with_bad_settings_is_refused(world, trained, case):
    change, expected = BAD[case]
    done = adapt(world, trained, f"bad {case}", 1, "lora", adapter={**LORA, **change})
    assert expected in message(done)


def test_adapter_without_a_frozen_base_is_refused(world, trained):
    done = adapt(world, trained, "adapter no base", 1, "ia3", init_checkpoint=None)
    assert "t0.adapter is set, but no base" in message(done)
    done = adapt(world, trained, "adapter filter", 1, "ia3", variable_filter="encoder")
    assert "run.variable_filter and t0.adapter are both set" in message(done)
    # A folder with checkpoints of a whole model, and a base that is an adapter itself
    whole = world.folder / "adapter whole"
    shutil.copytree(trained["torch"], whole)
    done = adapt(world, trained, whole.name, 31, "ia3", training__allow_config_change=True)
    assert "is a checkpoint of a whole model" in message(done)
    assert adapt(world, trained, "adapter first", 1, "ia3").returncode == 0
    first = str(world.folder / "adapter first")
    done = adapt(world, trained, "adapter second", 1, "lora", init_checkpoint=first)
    assert "is an adapter itself; expected a model" in message(done)


def test_adapter_records_the_checkpoint_of_its_base(tmp_path):
    from t0.files.any_path import any_path
    from t0.torch.adapters import check_base
    from tests.checkpoints.tiny_checkpoints import V11, write_mtf
    from tests.checkpoints.tiny_checkpoints import weights as tiny_weights

    for step in (100, 200):
        write_mtf(tmp_path / "base", tiny_weights(V11), step=step)
    remote = any_path(f"ram://{tmp_path.name}")
    for path in (tmp_path / "base").iterdir():
        (remote / path.name).write_bytes(path.read_bytes())
    for base in (tmp_path / "base", remote):
        spec = SimpleNamespace(
            init_checkpoint=str(base), variable_filter=None, model_dir=str(tmp_path / "run")
        )
        assert check_base(spec) == f"{base}/model.ckpt-200"


@pytest.mark.parametrize("method", ADAPTERS)
def test_adapter_steps_as_cuda_graphs_share_the_frozen_weights(method):
    """Replayed steps run here without a GPU, and so without graphs."""
    from t0.config.model_spec import Dropout, T5Spec
    from t0.config.specification import AdapterSpec
    from t0.torch import adapters, cuda_graphs, optimizers, processes, sharding
    from t0.torch import checkpointing as engine_weights
    from t0.torch.model import move_to_device
    from tests.checkpoints.tiny_checkpoints import V11

    spec = T5Spec(V11, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
    adapter = AdapterSpec(**{**ADAPTERS[method], "dropout": 0.0})
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(1, 100, (4, 8)) for name in ("inputs", "targets")}
    parameters = dict.fromkeys(("weight_decay_rate", "epsilon"), 0.01)
    parameters |= {"beta_1": 0.9, "beta_2": 0.99, "offset": 0, "rms_clipping_threshold": None}
    parameters |= {"multiply_by_parameter_scale": False, "exclude_from_weight_decay": ()}
    found = []
    with processes.join_processes("cpu") as joined:
        for replays in (False, True):
            model = sharding.sharded(spec, joined, activations=torch.bfloat16, adapter=adapter)
            trained = sharding.trained_weights(model, None)
            local = sharding.unsharded(spec, adapter=adapter).to(torch.bfloat16)
            local = local.to_empty(device="cpu")
            if replays:
                trained = cuda_graphs.use_gradients_of(local, model, trained, microbatches=1)
            optimizer = optimizers.AdamW(
                trained, joined.all_reduce_sum, optimizers.AdamWParameters(**parameters)
            )
            engine_weights.fill_at_random(model, 0, joined)
            engine_weights.fill_adapter(model, 0, joined)
            before = {n: x.clone() for n, x in sharding.names_and_parameters(model).items()}
            if replays:
                steps = cuda_graphs.ReplayedSteps(
                    model, local, optimizer, denominator=32.0, clip_norm=None
                )
                for step in range(2):
                    steps.take([batch], [step], step=step, rate=0.01)
                shared = sharding.local_rows(model.shared.weight).data_ptr()
                assert local.shared.weight.data_ptr() == shared
            else:
                for step in range(2):
                    sums = model(move_to_device(batch, joined.device))
                    (sums[0] / 32.0).backward()
                    optimizer.step(step, 0.01, None)
                    model.zero_grad(set_to_none=True)
            for name, parameter in sharding.names_and_parameters(model).items():
                assert parameter.dtype == torch.bfloat16 and parameter.grad is None
                assert torch.equal(
                    sharding.local_rows(parameter), sharding.local_rows(before[name])
                )
            assert optimizer.slots and all("a3_l" in n or "lora_" in n for n in optimizer.slots)
            found.append(
                {n: sharding.local_rows(x) for n, x in adapters.adapter_parameters(model).items()}
            )
    for name, expected in found[0].items():
        assert found[1][name].dtype == torch.float32
        assert torch.allclose(found[1][name], expected, atol=1e-3), name
        assert name.endswith("lora_A.weight") or not torch.all(expected == expected.round())


def test_adapter_in_a_gin_file_becomes_a_specification(world, trained):
    folder = world.folder / "adapter gin"
    runs = (("lora", "lora", "weather_train"), ("tfew", "ia3", "weather_eval"))
    for file, method, task in runs:
        path = world.folder / f"{file}.json"
        words = [
            "--module_import=t0.seqio_tasks",
            f"--additional_task_cache_dirs={world.folder}/cache",
            f"--model_dir={folder}",
            "--gin_file=models/t5.1.1.tiny.gin",
            f"--gin_file=runs/{file}.gin",
            *(f"--gin_param={each}" for each in ("num_layers = 2", "d_model = 128", "d_ff = 256")),
            f"--gin.MIXTURE_OR_TASK_NAME='{task}'",
            "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
            "--gin.USE_CACHED_TASKS=True",
            "--gin.TRAIN_STEPS=2",
            f"--checkpoint={trained['hf']}",
        ]
        done = world.command(*words, f"--save_spec={path}")
        assert done.returncode == 0, done.stderr
        spec = json.loads(path.read_text())
        assert spec["adapter"]["method"] == method
        assert spec["init_checkpoint"] == str(trained["hf"])
        assert f"'{method}'" in spec["records"]["configuration.json"]
    done = world.torch(path)
    assert done.returncode == 0, done.stderr
    assert (folder / "torch.ckpt-2" / "adapter_config.json").is_file()
    done = world.command(*words)
    assert done.returncode == 2
    assert "only the PyTorch engine trains adapters; add --engine=torch" in done.stderr
