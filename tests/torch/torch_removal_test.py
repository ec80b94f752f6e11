"""Removed checkpoints of the PyTorch engine, if the removal is interrupted."""

import pytest

torch_checkpointing = pytest.importorskip("t0.torch.checkpointing", reason="needs PyTorch")


def test_checkpoint_whose_removal_is_interrupted_is_no_checkpoint(tmp_path, monkeypatch):
    folder = torch_checkpointing.folder_of(str(tmp_path), 3)
    folder.mkdir()
    for name in ("resume.json", "shard-00001-model-00001-of-00001.safetensors"):
        (folder / name).write_text("{}")
    assert torch_checkpointing.steps(str(tmp_path)) == [3]

    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch_checkpointing.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch_checkpointing._remove(folder)
    assert torch_checkpointing.steps(str(tmp_path)) == []
    # The next save removes all folders with this beginning.
    assert [path.name for path in tmp_path.iterdir()] == [".saving-torch-torch.ckpt-3"]
    torch_checkpointing._remove(folder)  # a folder that is gone is no error
