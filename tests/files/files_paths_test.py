"""Paths of both kinds do the same, and fail the same."""

import os
import socket

import pytest

from t0.errors import UserError
from t0.files import any_path, paths, write_whole


def test_paths_read_and_write_bytes_and_text(root):
    path = f"{root}/a/b/x.bin"
    paths.make_folder(f"{root}/a/b")
    with paths.opened(path, "wb") as file:
        file.write(b"\x00\xff one")
    assert paths.read_bytes(path) == b"\x00\xff one"
    assert paths.size_bytes(path) == 6
    path = f"{root}/a/b/x.txt"
    with paths.opened(path, "w") as file:
        file.write("né\n")
    assert paths.read_text(path) == "né\n"
    with paths.opened(path) as file:
        assert (file.read(1), file.read()) == (b"n", "é\n".encode())


def test_paths_list_names_and_walk(root):
    for name in ("b/y", "b/x", "a/z", "c.txt"):
        write_file(f"{root}/{name}")
    assert paths.list_names(root) == ["a", "b", "c.txt"]
    assert paths.list_names(f"{root}/b") == ["x", "y"]
    walked = list(paths.walk(root))
    assert sorted(walked) == [(root, ["c.txt"]), (f"{root}/a", ["z"]), (f"{root}/b", ["x", "y"])]
    assert paths.list_names(f"{root}/none") == []
    assert list(paths.walk(f"{root}/none")) == []


def test_paths_exists_and_is_folder(root):
    write_file(f"{root}/a/x")
    assert paths.exists(f"{root}/a/x")
    assert paths.exists(f"{root}/a")
    assert not paths.exists(f"{root}/a/y")
    assert (paths.is_folder(f"{root}/a"), paths.is_folder(f"{root}/a/x")) == (True, False)


def test_paths_remove_rename_copy(root):
    write_file(f"{root}/a/x", "1")
    write_file(f"{root}/a/y", "2")
    paths.rename(f"{root}/a/x", f"{root}/a/y")
    assert (paths.list_names(f"{root}/a"), paths.read_text(f"{root}/a/y")) == (["y"], "1")
    # (TensorFlow's file system in memory appends to a file that is there, unlike object stores.)
    if not paths.is_remote(root):
        write_file(f"{root}/z", "3")
    paths.copy(f"{root}/a/y", f"{root}/z")
    assert paths.read_text(f"{root}/z") == "1"
    paths.remove(f"{root}/a")
    paths.remove(f"{root}/z")
    paths.remove(f"{root}/never")
    assert paths.list_names(root) == []


def test_paths_remove_symbolic_link_keeps_the_target(tmp_path):
    write_file(f"{tmp_path}/folder/x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    paths.remove(f"{tmp_path}/link")
    assert paths.list_names(str(tmp_path)) == ["folder"]
    assert paths.exists(f"{tmp_path}/folder/x")


@pytest.mark.parametrize(
    "do",
    [
        paths.read_bytes,
        paths.size_bytes,
        lambda path: paths.rename(path, path + "2"),
        lambda path: paths.copy(path, path + "2"),
    ],
)
def test_paths_absent_file_raises_file_not_found(root, do):
    with pytest.raises(FileNotFoundError):
        do(f"{root}/absent")


def test_paths_local_copy_of_a_remote_file(root):
    write_file(f"{root}/x", "text")
    with paths.local_copy(f"{root}/x") as local:
        assert not paths.is_remote(local)
        assert paths.read_text(local) == "text"
    assert paths.exists(local) == (local == f"{root}/x")
    assert paths.exists(f"{root}/x")


def test_paths_remote_fault_keeps_its_error_message(monkeypatch, tmp_path):
    import tensorflow as tf

    def broken(*args, **kwargs):
        raise tf.errors.UnavailableError(None, None, "the network is down\nat length")

    monkeypatch.setattr(tf.io.gfile, "stat", broken)
    with pytest.raises(OSError, match="the network is down") as error:
        paths.size_bytes(f"ram://{tmp_path.name}/x")
    assert error.value.strerror == "the network is down"

    def denied(*args, **kwargs):
        raise tf.errors.PermissionDeniedError(None, None, "not yours")

    monkeypatch.setattr(tf.io.gfile, "exists", denied)
    with pytest.raises(PermissionError, match="not yours"):  # which is not absence
        paths.exists(f"ram://{tmp_path.name}/x")


def test_paths_opened_passes_user_error_through(root):
    write_file(f"{root}/x")
    with pytest.raises(UserError, match="mine"), paths.opened(f"{root}/x"):
        raise UserError("mine")


def write_file(path, text="text"):
    paths.make_folder(path.rpartition("/")[0])
    write_whole(path, text)


def test_paths_pipe_or_device_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            paths.read_bytes(tmp_path / name)
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            any_path.binary(tmp_path / name)
    for name in ("/dev/zero", "/proc/self/comm"):  # data can name these files, too
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            paths.read_bytes(name)


def test_paths_folder_with_a_pipe_or_a_socket_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("config.json")
    (tmp_path / "subfolder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    paths.check_folder(tmp_path)
    assert paths.read_text(tmp_path / "link.json") == "{}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(tmp_path / "socket"))  # an absolute path may be too long
    listening.close()
    for check, path in ((paths.check_folder, tmp_path), (paths.read_bytes, tmp_path / "socket")):
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            check(path)
    with pytest.raises(IsADirectoryError):
        paths.read_bytes(tmp_path)


def test_paths_sparse_file_is_not_read_whole(tmp_path):
    with open(tmp_path / "results.json", "wb") as file:  # noqa: PTH123
        file.truncate(2**40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes; the limit"):
        paths.read_bytes(tmp_path / "results.json")
    with pytest.raises(OSError, match="line 1 has more than 67,108,864 bytes"):
        next(any_path.read_lines(tmp_path / "results.json"))


def test_paths_lines_longer_than_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(any_path, "LARGEST_LINE", 5)
    (tmp_path / "x").write_bytes(b"1234\n\n12345\n")
    lines = any_path.read_lines(tmp_path / "x")
    assert [next(lines), next(lines)] == [b"1234\n", b"\n"]
    with pytest.raises(OSError, match="line 3 has more than 5 bytes"):
        next(lines)
