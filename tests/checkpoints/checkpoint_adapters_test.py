"""Adapters in PEFT's folders: merging, PEFT's logits in both directions, and bad input."""

import contextlib
import dataclasses
import json
import re
import resource
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t0.checkpoints import adapter_folders, as_mesh_checkpoint, convert, open_source, torch_shards
from t0.checkpoints.adapter_folders import BaseModel, describe_tensor
from t0.checkpoints.conversion import ConversionOptions, fingerprint
from t0.cli.main import main
from t0.config.specification import AdapterSpec
from t0.errors import UserError
from t0.files.any_path import any_path
from tests.checkpoints.tiny_checkpoints import V10, V11, weights, write_mtf

Q = "encoder.block.1.layer.0.SelfAttention.q"
WO = "decoder.block.0.layer.2.DenseReluDense.wo"
V = "decoder.block.2.layer.1.EncDecAttention.v"
LORA = AdapterSpec("lora", rank=4, alpha=6.0, projections=("q", "o", "wo"))
IA3 = AdapterSpec("ia3")
IDS = np.random.default_rng(5).integers(2, 100, (2, 12))


@pytest.fixture
def base(tmp_path):
    source = write_mtf(tmp_path / "mtf", weights(V11))
    convert(source, tmp_path / "hf", to="hf")
    return tmp_path / "hf"


def tensors_of(spec):
    """The factors of two projections, by PEFT's names."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return rng.standard_normal(shape, np.float32)

    if spec.method == "ia3":
        return {f"{V}.ia3_l": draw(16, 1), f"{WO}.ia3_l": draw(1, 48)}
    shapes = {Q: (32, 16), WO: (48, 32)}
    return {
        f"{name}.lora_{half}.weight": draw(4, inputs) if half == "A" else draw(outputs, 4)
        for name, (inputs, outputs) in shapes.items()
        for half in "AB"
    }


def add_adapter(folder, base, spec=LORA, tensors=None):
    """Writes an adapter of a base."""
    folder.mkdir()
    with contextlib.closing(open_source(base)) as source:
        hashes = {name: describe_tensor(source.load(name)) for name in source.parameters}
    recorded = BaseModel(str(base), hashes)
    adapter_folders.write(folder, spec, tensors or tensors_of(spec), recorded, step=7)
    return folder


def merged(path, **given):
    with contextlib.closing(open_source(path, **given)) as source:
        return {name: source.load(name) for name in source.entries}


@pytest.mark.parametrize("spec", [LORA, IA3], ids=["lora", "ia3"])
def test_adapter_is_merged_in_closed_form(tmp_path, base, spec):
    before, after = merged(base), merged(add_adapter(tmp_path / "adapter", base, spec))
    factors = tensors_of(spec)
    wo = "decoder/block_000/layer_002/DenseReluDense/wo/kernel"
    if spec is LORA:
        other = "encoder/block_001/layer_000/SelfAttention/q"
        product = factors[f"{WO}.lora_B.weight"] @ factors[f"{WO}.lora_A.weight"]
        expected = before[wo] + 1.5 * product.T
    else:
        other = "decoder/block_002/layer_001/EncDecAttention/v"
        expected = before[wo] * factors[f"{WO}.ia3_l"].T
    assert after[wo] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {wo, other}


def test_adapter_is_merged_by_conversion_to_any_format(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    expected = merged(adapter)
    for to in ("mtf", "hf", "t5x"):
        report = convert(base, tmp_path / to / "out", to=to, adapter=adapter)
        assert report.kinds == ("adapter", to)
        found = merged(tmp_path / to / "out")
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    # The same base in another format is the same base.
    convert(tmp_path / "mtf", tmp_path / "again", to="hf", adapter=adapter)
    prefix = as_mesh_checkpoint(str(adapter), tmp_path / "work")
    found = merged(prefix)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_adapter_joined_with_a_base_is_copied_once(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    moved = base.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="is an adapter, and its base .*hf' is not here. Name the"):
        open_source(adapter)
    joined = adapter_folders.join([str(adapter)], str(moved), str(tmp_path / "out"))
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert adapter_folders.join([str(adapter)], str(moved), str(tmp_path / "out")) == joined
    assert first == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    expected = merged(adapter, base=moved)
    assert all(np.array_equal(array, expected[name]) for name, array in merged(joined).items())


def change_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change, **metadata):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata)


PREFIX = "base_model.model."
BAD = {
    "prompt tuning": (
        lambda folder: change_config(folder, peft_type="PROMPT_TUNING"),
        "PEFT's method 'PROMPT_TUNING' is not supported; expected IA3 or LORA",
    ),
    "no method": (lambda f: change_config(f, peft_type=["LORA"]), r"method \['LORA'\] is not supp"),
    "DoRA": (lambda f: change_config(f, use_dora=True), "'use_dora' = True is not supported"),
    "PiSSA": (
        lambda folder: change_config(folder, init_lora_weights="pissa"),
        "'init_lora_weights' = 'pissa' is not supported",
    ),
    "rank": (lambda f: change_config(f, r=5), r"does not fit .*its factors are .*\(4, 48\)"),
    "no rank": (lambda f: change_config(f, r="4"), "r is '4'; expected a whole number"),
    "rank above a dimension": (
        lambda folder: (
            change_config(folder, r=17),
            change_tensors(
                folder,
                lambda t: t.update(
                    {
                        f"{PREFIX}{name}.lora_{half}.weight": np.zeros(shape, np.float32)
                        for name, half, shape in (
                            (Q, "A", (17, 32)),
                            (Q, "B", (16, 17)),
                            (WO, "A", (17, 48)),
                            (WO, "B", (32, 17)),
                        )
                    }
                ),
            ),
        ),
        r"does not fit encoder/block_001/layer_000/SelfAttention/q \[32, 16\] of the base",
    ),
    "projection": (
        lambda folder: change_tensors(
            folder, lambda t: t.update({f"{PREFIX}{Q}x.lora_A.weight": np.zeros((4, 32))})
        ),
        "1 tensors that are not factors of a projection of the base .*merge_and_unload",
    ),
    "embedding": (
        lambda folder: change_tensors(
            folder, lambda t: t.update({f"{PREFIX}shared.lora_embedding_A": np.zeros((4, 112))})
        ),
        r"1 tensors .*merge_and_unload\), .*\n.*shared.lora_embedding_A",
    ),
    "other copy of the head": (
        lambda folder: change_tensors(
            folder, lambda t: t.update({f"{PREFIX}lm_head.base_layer.weight": np.zeros((112, 32))})
        ),
        "lm_head.base_layer.weight in the adapter .* differs .*merge_and_unload",
    ),
    "half": (
        lambda folder: change_tensors(folder, lambda t: t.pop(f"{PREFIX}{Q}.lora_B.weight")),
        "does not fit encoder/block_001/layer_000/SelfAttention/q",
    ),
    "pickle": (
        lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"),
        "no adapter_model.safetensors: save",
    ),
    "truncated": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"12345678"),
        "is truncated or not a safetensors file",
    ),
    "metadata": (
        lambda folder: change_tensors(folder, lambda t: None, t0='{"path": 3}'),
        "has damaged metadata",
    ),
    "hash": (
        lambda folder: change_tensors(
            folder, lambda t: None, t0='{"path": "x", "tensors": {}, "hash": "0", "step": 1}'
        ),
        "has damaged metadata: its hash",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_adapter_that_cannot_be_merged_is_refused(tmp_path, base, case):
    adapter = add_adapter(tmp_path / "adapter", base)
    change, expected = BAD[case]
    change(adapter)
    with pytest.raises(UserError, match=expected) as caught:
        convert(base, tmp_path / "out", to="hf", adapter=adapter)
    assert "\n" not in str(caught.value) or case in ("projection", "embedding")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("copy", ["lm_head.base_layer.weight", "lm_head.weight"])
def test_adapter_of_the_head_may_have_a_copy_of_the_base(tmp_path, base, copy, dtype):
    tensors, rng = tensors_of(LORA), np.random.default_rng(2)
    head = load_file(base / "model.safetensors")["lm_head.weight"]
    half_a = tensors["lm_head.lora_A.weight"] = rng.standard_normal((4, 32), np.float32)
    half_b = tensors["lm_head.lora_B.weight"] = rng.standard_normal((len(head), 4), np.float32)
    adapter = add_adapter(tmp_path / "adapter", base, tensors={**tensors, copy: head.astype(dtype)})
    merged_head = merged(adapter)["decoder/logits/kernel"]
    assert merged_head == pytest.approx(head.T + 1.5 * (half_b @ half_a).T, rel=1e-5, abs=1e-5)


def test_adapter_of_a_head_that_the_base_shares_is_refused_with_a_remedy(tmp_path):
    convert(write_mtf(tmp_path / "mtf", weights(V10)), tmp_path / "hf", to="hf")
    tensors = {"lm_head.lora_A.weight": np.zeros((4, 32), np.float32)}
    adapter = add_adapter(tmp_path / "adapter", tmp_path / "hf", tensors=tensors)
    with pytest.raises(UserError, match=r"of the base .*merge_and_unload.*\n.*lm_head.lora_A"):
        open_source(adapter)


def test_adapter_for_another_base_is_refused(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    other = weights(V11, seed=9)
    write_mtf(tmp_path / "other", other)
    with pytest.raises(UserError, match=rf"is for the base {base} \(hash .*not for {tmp_path}/oth"):
        convert(tmp_path / "other", tmp_path / "out", to="hf", adapter=adapter)
    write_mtf(tmp_path / "larger", weights(dataclasses.replace(V10, d_ff=64)))
    with pytest.raises(UserError, match="does not fit"):
        open_source(adapter, base=tmp_path / "larger")


def test_adapter_is_merged_into_the_chosen_step_of_its_base(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    change_tensors(adapter, lambda tensors: None)  # without a record, as PEFT writes it
    write_mtf(tmp_path / "mtf", weights(V11, seed=9), step=2000)
    options = ConversionOptions(step=1000)
    source, target = tmp_path / "mtf", tmp_path / "out"
    convert(source, target, to="hf", adapter=adapter, options=options)
    expected, found = merged(adapter), merged(target)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_adapter_of_a_run_with_damaged_bytes_is_not_joined(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    checksums = {path.name: torch_shards.file_checksum(path) for path in adapter.iterdir()}
    sizes = {path.name: path.stat().st_size for path in adapter.iterdir()}
    record = torch_shards.record_text({"step": 7, "files": sizes}, checksums)
    (adapter / "resume.json").write_text(record)
    content = bytearray((adapter / "adapter_model.safetensors").read_bytes())
    content[-2] ^= 1
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="adapter_model.safetensors is damaged"):
        adapter_folders.join([str(adapter)], str(base), str(tmp_path / "out"))


def test_adapter_of_a_run_in_eval_is_the_best_checkpoint(tmp_path, base, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for step in (10, 20):
        adapter = add_adapter(run / f"torch.ckpt-{step}", base)
        (adapter / "resume.json").write_text("{}")
        change_config(adapter, peft_type="PROMPT_TUNING")  # the error names the chosen checkpoint
    (run / "metrics.jsonl").write_text('{"best_by": "validation_loss", "best_step": 10}\n')
    with pytest.raises(SystemExit):
        main(["eval", str(base), f"--adapter={run}", f"--output={tmp_path}/out"])
    expected = f"{run}/torch.ckpt-10/adapter_config.json: PEFT's method 'PROMPT_TUNING'"
    assert expected in capsys.readouterr().err


def test_adapter_that_names_no_base_does_not_use_the_working_directory(tmp_path, base, monkeypatch):
    adapter = add_adapter(tmp_path / "adapter", base)
    change_config(adapter, base_model_name_or_path=None)
    monkeypatch.chdir(base)
    with pytest.raises(UserError, match="its base '' is not here.*its config names no base"):
        open_source(adapter)


def test_adapter_on_a_full_disk_raises_an_oserror(tmp_path):
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            recorded = BaseModel("base", {})
            adapter_folders.write(tmp_path, LORA, tensors_of(LORA), recorded, step=7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


def test_fingerprint_of_an_adapter_changes_with_its_base_in_a_bucket(tmp_path, base, monkeypatch):
    remote = any_path(f"ram://{tmp_path.name}/base")
    for path in base.iterdir():
        (remote / path.name).write_bytes(path.read_bytes())
    adapter = add_adapter(tmp_path / "adapter", base)
    change_config(adapter, base_model_name_or_path=str(remote))
    for use in (open_source, lambda path: fingerprint("adapter", str(path), "")):
        with pytest.raises(UserError, match="only the command line names buckets.*--adapter"):
            use(adapter)
    monkeypatch.setattr(sys, "argv", ["t0", "eval", str(remote), f"--adapter={adapter}"])
    before = fingerprint("adapter", str(adapter), "")
    (remote / "config.json").write_text("{} ")
    assert fingerprint("adapter", str(adapter), "") != before


def test_adapter_of_an_adapter_and_two_adapters_are_refused(tmp_path, base):
    adapter = str(add_adapter(tmp_path / "adapter", base))
    with pytest.raises(UserError, match="is an adapter, and so is its base .*expected one adapter"):
        open_source(adapter, base=adapter)
    with pytest.raises(UserError, match="--adapter is given 2 times; expected one adapter"):
        adapter_folders.choose([adapter, adapter])
    with pytest.raises(UserError, match="has no adapter_config.json; expected a folder of PEFT"):
        adapter_folders.choose([str(base)])
    with pytest.raises(UserError, match="gs://b/out is remote. Merge the adapter first"):
        adapter_folders.join([adapter], str(base), "gs://b/out")


def test_adapter_that_names_itself_as_its_base_is_refused(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(adapter)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for use in (
        lambda: open_source(adapter),
        lambda: as_mesh_checkpoint(str(adapter), tmp_path / "work"),
    ):
        with pytest.raises(UserError, match="and so is its base .*expected one adapter"):
            use()


def test_adapter_with_a_quantized_base_is_refused(tmp_path, base):
    adapter = add_adapter(tmp_path / "adapter", base)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="quantized weights"):
        open_source(adapter)


def our_logits(model, ids):
    import torch

    batch = {"inputs": torch.from_numpy(ids), "targets": torch.from_numpy(ids)}
    with torch.no_grad():
        return model.logits(model.decode(batch, *model.encode(batch))).numpy()


def their_logits(model, ids):
    import torch

    shifted = np.pad(ids, ((0, 0), (1, 0)))[:, :-1]
    with torch.no_grad():
        given = {"input_ids": torch.from_numpy(ids), "decoder_input_ids": torch.from_numpy(shifted)}
        return model(**given).logits.numpy()


def our_model(path, adapter=None):
    """The PyTorch engine's model with the weights of a checkpoint."""
    import torch

    from t0.config.model_spec import Dropout, T5Spec
    from t0.torch import checkpointing as engine_weights
    from t0.torch import processes, sharding

    spec = T5Spec(V11, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
    model = sharding.unsharded(spec, adapter=adapter).to_empty(device="cpu").eval()
    hashes = {}
    joined = processes.World(0, 1, torch.device("cpu"))
    engine_weights.load(model, None, str(path), joined, hashes=hashes)
    return model, joined, BaseModel(str(path), hashes)


def draw_factors(parameters):
    """Fills the factors of an adapter with random values."""
    import torch

    for name, parameter in parameters.items():
        rng = np.random.default_rng(len(name))
        values = rng.normal(1.0 if "ia3_l" in name else 0.0, 0.2, parameter.shape)
        parameter.data = torch.from_numpy(values).float()


def peft_configs():
    peft = pytest.importorskip("peft", reason="needs peft: .ci/run transformers")
    return {
        "ia3": peft.IA3Config(),
        "lora": peft.LoraConfig(r=4, lora_alpha=3, target_modules=["q", "k", "o", "wi_0"]),
        "rslora": peft.LoraConfig(r=4, lora_alpha=2, use_rslora=True, lora_dropout=0.1),
        "encoder": peft.LoraConfig(r=4, target_modules=ENCODER),
        "blocks": peft.LoraConfig(
            r=4, target_modules=["SelfAttention.q", "o"], layers_to_transform=[1]
        ),
        "decoder": peft.IA3Config(
            target_modules=["k", "wo"], feedforward_modules=["wo"], exclude_modules="encoder.*"
        ),
    }


@pytest.mark.filterwarnings("default::FutureWarning")  # of transformers, in PEFT's calls
@pytest.mark.parametrize("kind", ["ia3", "lora", "rslora", "encoder", "blocks", "decoder"])
def test_adapter_written_by_peft_has_its_logits(tmp_path, base, kind):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = peft_configs()[kind]
    import peft

    plain = transformers.T5ForConditionalGeneration.from_pretrained(base)
    before = their_logits(plain.eval(), IDS)
    model = peft.get_peft_model(plain, config).eval()
    parameters = dict(model.named_parameters())
    draw_factors({n: x for n, x in parameters.items() if "lora_" in n or "ia3_l" in n})
    model.save_pretrained(tmp_path / "adapter")
    if kind in ("encoder", "blocks", "decoder"):  # the same settings name the same modules here
        names = ("target_modules", "exclude_modules", "layers_to_transform")
        settings = {n: getattr(config, n, None) or () for n in names}
        settings = {n: x if isinstance(x, str) else tuple(x) for n, x in settings.items()}
        spec = AdapterSpec("ia3" if kind == "decoder" else "lora", rank=4, **settings)
        factors = [n.removeprefix("base_model.model.") for n in parameters if "default" in n]
        theirs = {re.sub(r"\.(lora_[AB]|ia3_l)\..*", "", name) for name in factors}
        assert set(adapter_folders.adapted_modules(spec, V11)) == theirs
    expected = their_logits(model, IDS)
    assert np.abs(expected - before).max() > 0.05
    found = our_logits(our_model(tmp_path / "adapter")[0], IDS)
    assert np.abs(found - expected).max() < 1e-5


ENCODER = r"encoder\..*\.(q|wo)"
CHOSEN = {
    "encoder": (AdapterSpec("lora", rank=4, target_modules=ENCODER), "encoder"),
    "decoder": (
        AdapterSpec("ia3", target_modules=("EncDecAttention.k", "wo"), exclude_modules="encoder.*"),
        "decoder",
    ),
    "blocks": (AdapterSpec("ia3", layers_to_transform=(1,)), "block.1."),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_adapter_of_some_modules_has_only_their_weights(case):
    spec, text = CHOSEN[case]
    modules = adapter_folders.adapted_modules(spec, V11)
    whole = dataclasses.replace(spec, exclude_modules=(), layers_to_transform=())
    whole = dataclasses.replace(whole, target_modules=("q", "wo") if case == "encoder" else ())
    others = adapter_folders.adapted_modules(whole, V11)
    if case == "decoder":
        others = {m: x for m, x in others.items() if "EncDecAttention.k" in m or m.endswith("wo")}
    assert modules == {module: size for module, size in others.items() if text in module}
    assert 0 < len(modules) < len(others)
    sizes = modules.values()
    ia3 = sum(size[0] if m.endswith("wo") else size[1] for m, size in modules.items())
    lora = sum(spec.rank * (rows + columns) for rows, columns in sizes)
    assert adapter_folders.count_weights(spec, V11) == (lora if spec.method == "lora" else ia3)


WRONG = {
    "both": ({"projections": ["q"], "target_modules": "q"}, "are both set; unset one"),
    "ending": ({"target_modules": ["query"]}, "has 'query', which matches no projection of this"),
    "whole name": ({"target_modules": "q"}, "has 'q', which matches no projection"),
    "pattern": ({"target_modules": "("}, r"target_modules = '\(': it is not a regular expression"),
    "slow pattern": ({"target_modules": r"(\w|\.|\w\w)+\d"}, "takes over 0.2 s"),
    "exclude": (
        {"exclude_modules": ["encoder"]},
        "exclude_modules has 'encoder', which matches no",
    ),
    "block": ({"layers_to_transform": [9]}, "layers_to_transform has 9, .* Its blocks are 0, 1"),
    "nothing": ({"exclude_modules": ".*"}, "leave no module of target_modules to adapt"),
}


@pytest.mark.parametrize("case", WRONG)
def test_adapter_of_modules_that_the_model_does_not_have_is_refused(case, monkeypatch):
    settings, message = WRONG[case]
    monkeypatch.setattr(adapter_folders, "_MATCHING_SECONDS", 0.2)
    with pytest.raises(UserError, match=message):
        adapter_folders.adapted_modules(AdapterSpec("lora", **settings), V11)


@pytest.mark.filterwarnings("default::FutureWarning")
@pytest.mark.parametrize(
    "spec", [IA3, dataclasses.replace(LORA, dropout=0.1), *(spec for spec, _ in CHOSEN.values())]
)
def test_adapter_written_here_has_the_same_logits_in_peft(tmp_path, base, spec):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft", reason="needs peft: .ci/run transformers")
    from t0.torch import adapters

    model, _, recorded = our_model(base, spec)
    draw_factors(adapters.adapter_parameters(model))
    folder = tmp_path / "adapter"
    folder.mkdir()
    adapters.write(folder, 3, model=model, spec=spec, base=recorded, writes=True)
    plain = transformers.T5ForConditionalGeneration.from_pretrained(base)
    before = their_logits(plain.eval(), IDS)
    found = their_logits(peft.PeftModel.from_pretrained(plain, folder).eval(), IDS)
    expected = our_logits(model, IDS)
    assert np.abs(expected - before).max() > 0.05
    assert np.abs(found - expected).max() < 1e-5
    # Merged while loading, it is the same model.
    assert np.abs(our_logits(our_model(folder)[0], IDS) - found).max() < 1e-5
