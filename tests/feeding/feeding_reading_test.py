"""What tells the content of one cache from another's."""

import shutil

import pytest

from t0.feeding.reading import content_of

FILES = ("toy/train.tfrecord-00000-of-00002", "toy/train.tfrecord-00001-of-00002")


@pytest.fixture
def machines(tmp_path):
    """Two machines' folders, with the same cache."""
    folder = tmp_path / "first" / "toy"
    folder.mkdir(parents=True)
    for name in FILES:
        (tmp_path / "first" / name).write_bytes(name.encode())
    (folder / "COMPLETED").write_text('{"checksum": "ab"}')
    return shutil.copytree(tmp_path / "first", tmp_path / "second").parent


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("toy/COMPLETED", '{"checksum": "ac"}'),
        ("toy/COMPLETED", None),
        (FILES[0], "cut"),
        (FILES[1], None),
    ],
)
def test_cache_fingerprint_changes_with_content(machines, monkeypatch, name, content):
    found = []
    for machine in ("first", "second", "second"):
        if len(found) == 2 and content is None:
            (machines / machine / name).unlink()
        elif len(found) == 2:
            (machines / machine / name).write_text(content)
        monkeypatch.chdir(machines / machine)
        found.append(content_of(FILES))
    assert found[0] == found[1] != found[2]
