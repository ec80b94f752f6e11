"""TensorFlow checkpoints without TensorFlow: TensorFlow reads ours, we read TensorFlow's."""

import numpy as np
import pytest

from t0.checkpoints.bundle import BundleEntry, BundleReader, BundleWriter, read_index, write_index
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import BFLOAT16


@pytest.fixture(scope="module")
def tf():
    import tensorflow as tf

    return tf


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    found = {
        f"a/long/common/prefix/{i:04d}/kernel": rng.random((3, i), np.float32) for i in range(40)
    }
    found["bf"] = rng.random((5, 7)).astype(BFLOAT16)
    found["step"] = np.asarray(7, np.int64)
    found["half"] = rng.random(3).astype(np.float16)
    found["zero/kernel"] = np.zeros((0, 4), np.float32)
    return found


def entry(rows, **fields):
    return BundleEntry(dtype=1, shape={"dim": [{"size": rows}, {"size": 2}]}, **fields)


def save_with_tensorflow(tf, prefix, arrays, shards):
    parts = np.array_split(np.asarray(sorted(arrays), object), shards)
    prefixes = []
    for number, part in enumerate(parts):
        prefixes.append(f"{prefix}_part{number}")
        tensors = [tf.constant(arrays[name]) for name in part]
        tf.raw_ops.SaveV2(
            prefix=prefixes[-1],
            tensor_names=list(part),
            shape_and_slices=[""] * len(part),
            tensors=tensors,
        )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(prefix))


@pytest.mark.parametrize("shards", [1, 3])
def test_checkpoint_bundle_reads_tensorflow_checkpoint(tf, arrays, tmp_path, shards):
    save_with_tensorflow(tf, tmp_path / "model.ckpt-1", arrays, shards)
    with BundleReader(tmp_path / "model.ckpt-1") as reader:
        assert set(reader.entries) == set(arrays)
        for name, array in arrays.items():
            got = reader.load(name)
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("shard_bytes", [1, 1000, 1 << 30])
def test_checkpoint_bundle_is_read_by_tensorflow(tf, arrays, tmp_path, shard_bytes):
    writer = BundleWriter(tmp_path / "model.ckpt-1", shard_bytes=shard_bytes)
    for name, array in arrays.items():
        writer.add(name, array)
    writer.finish()
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-1"))
    assert set(reader.get_variable_to_shape_map()) == set(arrays)
    for name, array in arrays.items():
        got = reader.get_tensor(name)
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_checkpoint_index_equals_tensorflow_byte_by_byte(tf, arrays, tmp_path):
    save_with_tensorflow(tf, tmp_path / "model.ckpt-1", arrays, 2)
    theirs = (tmp_path / "model.ckpt-1.index").read_bytes()
    shards, entries = read_index(theirs)
    assert write_index(entries, shards=shards) == theirs


def test_checkpoint_index_of_many_blocks(tf, tmp_path):
    # 20,000 names of 60 bytes: several blocks of 256 kB.
    entries = {
        f"block_{i:06d}/{'x' * 40}/k": entry(i, offset=i * 10**9, size=8 * i, crc32c=i)
        for i in range(20_000)
    }
    data = write_index(entries, shards=1)
    assert read_index(data) == (1, entries)
    (tmp_path / "m.index").write_bytes(data)
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"")
    assert len(tf.train.load_checkpoint(str(tmp_path / "m")).get_variable_to_shape_map()) == 20_000


def test_checkpoint_index_with_compressed_block_is_refused(monkeypatch):
    from t0.checkpoints import bundle

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "_PLAIN", 1)
        data = write_index({"a": entry(2, size=8)}, shards=1)
    with pytest.raises(ValueError, match="a block is compressed"):
        read_index(data)


@pytest.fixture
def written(tmp_path):
    writer = BundleWriter(tmp_path / "model.ckpt-5", shard_bytes=1)
    for name in ("a", "b"):
        writer.add(name, np.arange(100, dtype=np.float32))
    writer.finish()
    return tmp_path / "model.ckpt-5"


def test_checkpoint_bundle_truncated_data_file_is_refused(written):
    shard = written.with_name("model.ckpt-5.data-00001-of-00002")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"data-00001-of-00002 is truncated: 399 bytes of 400"):
        BundleReader(written)


def test_checkpoint_bundle_missing_data_file_is_refused(written):
    written.with_name("model.ckpt-5.data-00000-of-00002").unlink()
    with pytest.raises(UserError, match=r"data-00000-of-00002 is missing"):
        BundleReader(written)


def test_checkpoint_bundle_checksum_mismatch_is_refused(written):
    shard = written.with_name("model.ckpt-5.data-00000-of-00002")
    data = bytearray(shard.read_bytes())
    data[17] ^= 1
    shard.write_bytes(data)
    with BundleReader(written) as reader, pytest.raises(UserError, match="checksum of a "):
        reader.load("a")


@pytest.mark.parametrize("keep", [0, 10, 47, 60, -1, -9])
def test_checkpoint_index_truncated_is_refused(written, keep):
    index = written.with_name("model.ckpt-5.index")
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(UserError, match="not a complete index"):
        BundleReader(written)


def test_checkpoint_index_every_altered_byte_is_noticed(written):
    index = written.with_name("model.ckpt-5.index")
    good = index.read_bytes()
    wrong = []
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 0x5A
        index.write_bytes(data)
        try:
            with BundleReader(written) as reader:
                same = reader.entries == read_index(good)[1]
        except UserError:
            continue
        if not same:
            wrong.append(position)
    assert not wrong
