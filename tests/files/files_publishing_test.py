"""What is published appears whole, and what dead processes left is found."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from t0.files import OutputError, paths, publish_folder, publishing, whole_file, write_whole


def write(path, text="text"):
    paths.make_folder(path.rpartition("/")[0])
    write_whole(path, text)


@pytest.mark.parametrize("durable", [True, False])
def test_atomic_write_file_appears_when_complete(root, durable):
    path = f"{root}/x"
    with whole_file(path, durable=durable) as temporary:
        assert not paths.is_remote(temporary)
        with open(temporary, "w") as file:
            file.write("half")
            file.flush()
            assert not paths.exists(path)
            file.write(", whole")
    assert paths.read_text(path) == "half, whole"
    assert paths.list_names(root) == ["x"]
    assert not paths.exists(temporary)


def test_atomic_write_failure_keeps_the_old_file(root):
    path = f"{root}/x"
    write_whole(path, "before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        write_whole(temporary, "half")
        _ = 1 / 0
    assert paths.read_text(path) == "before"
    assert paths.list_names(root) == ["x"]
    assert not paths.exists(temporary)


def test_atomic_write_of_pieces_and_bytes(root):
    write_whole(f"{root}/x", (line + "\n" for line in ("né", "two")))
    assert paths.read_text(f"{root}/x") == "né\ntwo\n"
    write_whole(f"{root}/y", b"\x00\xff")
    assert paths.read_bytes(f"{root}/y") == b"\x00\xff"
    write_whole(f"{root}/z", [])
    assert paths.read_bytes(f"{root}/z") == b""


def test_atomic_write_replaces_an_existing_file(tmp_path):
    for text in ("longer", "short"):
        write_whole(f"{tmp_path}/x", text)
    assert (tmp_path / "x").read_text() == "short"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")  # noqa: PTH110
def test_atomic_write_full_disk_is_a_user_error(tmp_path):
    full = pytest.raises(OutputError, match="cannot write .*x: No space left on device")
    with full, whole_file(f"{tmp_path}/x"), open("/dev/full", "w") as file:
        file.write("x")
    assert list(tmp_path.iterdir()) == []


def test_atomic_write_durable_file_is_synced_before_rename(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (seen.append((tmp_path / "x").exists()), fsync(fd)))
    write_whole(f"{tmp_path}/x", "text", durable=True)
    write_whole(f"{tmp_path}/y", "text")
    assert seen == [False]


def test_publish_folder_appears_complete(root):
    write(f"{root}/a.incomplete-h-1-2/x")
    write(f"{root}/a.incomplete-h-1-2/DONE")
    assert publish_folder(f"{root}/a.incomplete-h-1-2", f"{root}/a", last="DONE", replace=False)
    assert paths.list_names(f"{root}/a") == ["DONE", "x"]
    assert paths.list_names(root) == ["a"]


def test_publish_folder_first_wins_unless_replace(root):
    for number in (1, 2, 3):
        staging = f"{root}/a.incomplete-h-{number}-0"
        write(f"{staging}/x{number}")
        write(f"{staging}/DONE", json.dumps(number))
        published = publish_folder(staging, f"{root}/a", last="DONE", replace=number == 3)
        assert published == (number != 2)
        assert paths.list_names(root) == ["a"]
    assert paths.list_names(f"{root}/a") == ["DONE", "x3"]


def test_publish_folder_replaces_an_unfinished_folder(root):
    write(f"{root}/a/old")
    write(f"{root}/a.incomplete-h-1-0/DONE")
    assert publish_folder(f"{root}/a.incomplete-h-1-0", f"{root}/a", last="DONE", replace=False)
    assert paths.list_names(f"{root}/a") == ["DONE"]


def test_publish_folder_keeps_folders_below_a_remote_one(bucket):
    bucket.put("b", "a/below/x", b"x")
    bucket.put("b", "a/old", b"x")
    bucket.put("b", "a.incomplete-h-1-0/DONE", b"")
    assert publish_folder("gs://b/a.incomplete-h-1-0", "gs://b/a", last="DONE", replace=False)
    assert sorted(bucket.files("b")) == ["a/DONE", "a/below/x"]


def test_leftovers_of_dead_processes_only_are_removed(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    host = publishing.unfinished_tag().split("-", 1)[1].rsplit("-", 2)[0]
    tags = {
        "dead": f"incomplete-{host}-{int(dead.stdout)}-1000",
        "replaced": f"incomplete-{host}-{int(dead.stdout)}-1000.replaced",
        # The process id lives, but is another process than the one that wrote this.
        "reused": f"incomplete-{host}-{os.getpid()}-1000",
        "alive": publishing.unfinished_tag(),
        "foreign": "incomplete-elsewhere-1-1000",
    }
    for tag in tags.values():
        write(f"{tmp_path}/a.{tag}/x")
    write(f"{tmp_path}/a/x")
    publishing.remove_leftovers([str(tmp_path)])
    left = {"a", f"a.{tags['alive']}", f"a.{tags['foreign']}"}
    assert {p.name for p in tmp_path.iterdir()} == left


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux")  # noqa: PTH110
def test_leftovers_of_a_live_run_stay_after_a_clock_change(tmp_path, monkeypatch):
    write(f"{tmp_path}/a.{publishing.unfinished_tag()}/x")
    monkeypatch.setattr("psutil.Process.create_time", lambda process: 5.0)
    assert publishing.leftovers([str(tmp_path)]) == []


def test_check_writable_unwritable_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write .*file/out"):
        publishing.check_writable(f"{tmp_path}/file/out")
    publishing.check_writable(f"{tmp_path}/new/out")
    assert [p.name for p in (tmp_path / "new" / "out").iterdir()] == []


def test_leftovers_include_unfinished_files_of_dead_processes(tmp_path):
    code = (
        "import os, sys; from t0.files import whole_file\n"
        "with whole_file(sys.argv[1]) as path: open(path, 'w').write('x'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, f"{tmp_path}/x"], check=True)
    with whole_file(f"{tmp_path}/mine") as mine:
        write_whole(mine, "x")
        (dead,) = publishing.leftovers([str(tmp_path)])
    assert dead.startswith(f"{tmp_path}/x.")
    publishing.remove_leftovers([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_temporary_files_of_a_run_are_in_a_private_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    dead = tmp_path / f"t0_run_x.incomplete-{socket.gethostname()}-999999999-1"
    (dead / "code").mkdir(parents=True)
    others = tmp_path / "others"
    others.mkdir()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(publishing.folder_of_run()))
        assert folder.stat().st_mode & 0o777 == 0o700
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(folder)
        with tempfile.NamedTemporaryFile(delete=False) as file:
            assert Path(file.name).parent == folder
        assert sorted(tmp_path.iterdir()) == sorted([others, folder])
        child = os.fork()
        if not child:
            stack.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert folder.exists()
        with publishing.folder_of_run() as inner:
            assert Path(inner).parent == folder
        assert tempfile.gettempdir() == str(folder)
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == [others]
