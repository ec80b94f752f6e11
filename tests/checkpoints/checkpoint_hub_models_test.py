"""Models on the hub: which names are, which files are downloaded, what is said offline."""

import types

import huggingface_hub
import pytest

from t0.checkpoints import prepared_checkpoint
from t0.errors import UserError

SHA = "8f3a" * 10


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one model, whose files are given; what was asked of it."""
    asked = []
    folder = tmp_path / "snapshots" / SHA

    def with_files(*files):
        siblings = [types.SimpleNamespace(rfilename=name) for name in files]
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(
            huggingface_hub.HfApi,
            "model_info",
            lambda self, repo, **given: types.SimpleNamespace(siblings=siblings, sha=SHA),
        )
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return asked

    def download(repo, **given):
        asked.append((repo, given))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        return str(folder)

    return with_files


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("bigscience/T0_3B", True),
        ("google/t5-base-lm-adapt@main", True),
        ("/models/t0", False),
        ("models/t0/run", False),
        ("t0", False),
        ("./a/b", False),
        ("../models", False),
    ],
)
def test_hub_model_names_are_recognized(text, is_one):
    assert prepared_checkpoint.is_hub_name(text) == is_one


def test_hub_model_name_of_existing_folder_is_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bigscience" / "T0_3B").mkdir(parents=True)
    assert not prepared_checkpoint.is_hub_name("bigscience/T0_3B")


def test_hub_model_prefers_safetensors_and_records_revision(hub):
    asked = hub("config.json", "pytorch_model.bin", "model.safetensors", "spiece.model")
    folder, name = prepared_checkpoint.fetch("bigscience/T0_3B@main")
    assert folder.endswith(SHA)
    assert name == f"bigscience/T0_3B@{SHA}"
    ((repo, given),) = asked
    assert (repo, given["revision"]) == ("bigscience/T0_3B", SHA)
    assert "*.safetensors" in given["allow_patterns"]
    assert not any("bin" in pattern for pattern in given["allow_patterns"])


def test_hub_model_downloads_pickles_without_safetensors(hub):
    asked = hub("config.json", "pytorch_model.bin", "flax_model.msgpack")
    prepared_checkpoint.fetch("google/t5-base-lm-adapt")
    patterns = asked[0][1]["allow_patterns"]
    assert "pytorch_model*.bin" in patterns
    assert "*.bin.index.json" in patterns


def test_hub_model_without_known_weights_is_refused(hub):
    hub("config.json", "flax_model.msgpack")
    with pytest.raises(UserError, match="neither safetensors nor pytorch_model.bin"):
        prepared_checkpoint.fetch("google/x")


def test_hub_model_offline_error_message_names_a_remedy(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def absent(*args, **given):
        assert given["local_files_only"]
        raise FileNotFoundError("not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    with pytest.raises(
        UserError,
        match=r"bigscience/T0_3B is not a folder here.*offline mode is enabled.*hf download "
        r"bigscience/T0_3B --local-dir T0_3B.*use its path",
    ):
        prepared_checkpoint.fetch("bigscience/T0_3B")
