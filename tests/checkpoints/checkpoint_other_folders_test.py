"""Folders that look like a checkpoint: adapters, a Trainer's output, the hub's cache."""

import json
import shutil

import pytest

from t0.checkpoints import convert, open_source, other_folders, prepared_checkpoint
from t0.errors import UserError


@pytest.fixture
def model(tmp_path, mtf_v11):
    convert(mtf_v11, tmp_path / "hf", to="hf")
    return tmp_path / "hf"


def add_adapter(folder):
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": "acme/tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def refused(path):
    with pytest.raises(UserError) as caught:
        open_source(path)
    return str(caught.value)


def test_lora_adapter_next_to_a_model_is_refused(model):
    message = refused(add_adapter(model))
    assert f"{model}/adapter_config.json: the folder has an adapter next to a model" in message
    assert "Move adapter_config.json and adapter_model.safeten" in message
    assert "name it with --adapter" in message
    with pytest.raises(UserError, match="adapter_config.json"):  # t0 eval, decoder-only as well
        prepared_checkpoint.locate(str(model))
    (model / "adapter_config.json").write_text("[")
    assert "adapter_config.json" in refused(model)


def test_lora_adapter_without_a_model_is_refused(tmp_path, model):
    message = refused(add_adapter(tmp_path / "lora"))
    assert f"{tmp_path}/lora is an adapter, and its base 'acme/tiny' is not here" in message
    (tmp_path / "lora" / "adapter_model.safetensors").unlink()
    message = refused(tmp_path / "lora")
    assert "has no adapter_model.safetensors: save the adapter again" in message
    shutil.copytree(model, tmp_path / "lora" / "merged")
    assert f"{tmp_path}/lora/merged" in refused(tmp_path / "lora")


def test_trainer_output_folder_lists_its_checkpoints(tmp_path, model):
    output = tmp_path / "output"
    for step in (500, 1000):
        shutil.copytree(model, output / f"checkpoint-{step}")
    add_adapter(output / "checkpoint-7")
    (output / "runs").mkdir()
    wanted = f"subfolders with a checkpoint:\n  {output}/checkpoint-1000\n  {output}/checkpoint-500"
    assert refused(output).endswith(wanted)
    # The output may have the config without the weights, or the reverse.
    shutil.copy(model / "config.json", output)
    assert "has no weights" in refused(output)
    assert refused(output).endswith(wanted)
    (output / "config.json").unlink()
    shutil.copy(model / "model.safetensors", output)
    assert "has no config.json" in refused(output)
    assert refused(output).endswith(wanted)


def test_hub_cache_folder_lists_its_snapshots(tmp_path, model):
    hub = tmp_path / "hub"
    snapshot = hub / "models--acme--tiny" / "snapshots" / "8f3a"
    shutil.copytree(model, snapshot)
    for folder in (hub, snapshot.parents[1], snapshot.parent):
        assert refused(folder).endswith(f"with a checkpoint:\n  {snapshot}")


def test_fsdp_shards_name_the_merge_command(tmp_path):
    shards = tmp_path / "out" / "checkpoint-5" / "pytorch_model_fsdp_0"
    shards.mkdir(parents=True)
    (shards / "__0_0.distcp").write_bytes(b"")
    for folder in (shards, shards.parent, tmp_path / "out"):
        assert f"accelerate merge-weights {shards} NEW" in refused(folder)


def test_checkpoint_look_alike_hint_is_empty_for_other_folders(tmp_path):
    assert other_folders.hint(tmp_path) == other_folders.hint(tmp_path / "none") == ""


def test_model_without_its_packages_is_refused_before_they_are_imported(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind in ("gpt2", "t5"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    other_folders.check_packages(str(tmp_path / "t5"))
    with pytest.raises(UserError) as caught:
        other_folders.check_packages(str(tmp_path / "gpt2"))
    assert "gpt2 is not a T5" in str(caught.value)
    assert "torch and transformers are not installed" in str(caught.value)
    assert "--with hf" in str(caught.value) and "--engine" not in str(caught.value)
