"""The PyTorch engine's checkpoints are read without PyTorch; what does not fit is refused."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from t0.checkpoints import convert, names, open_source
from t0.checkpoints.torch_shards import PLACES, RECORD, find_folder, record_text
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import V11, slots, weights, write_mtf

RUN = {"schema": 1, "step": 20, "began": 0, "seed": 0, "position": None, "own": [20]}
MODEL = {"activation": "gelu", "dropout_rate": 0.1, "legacy_norms": False, "vocabulary": "/absent"}


def write_shards(folder, tensors, processes=2, *, checksums=False):
    """Writes the rows of each process as `torch.distributed.checkpoint` does."""
    folder.mkdir(parents=True)
    sizes = {}
    for rank in range(processes):
        content, places = {}, {}
        for name, array in tensors.items():
            parameter, slot = names.split_slot(name)
            whole = array.T if array.ndim == 2 and names.row_of(parameter).transposed else array
            chunk = -(-len(whole) // processes)
            key = f"{'slots' if slot else 'weights'}/{name}"
            content[key] = np.ascontiguousarray(whole[rank * chunk : (rank + 1) * chunk])
            places[key] = {
                "saved_offsets": [min(rank * chunk, len(whole))] + [0] * (array.ndim - 1)
            }
        path = folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        save_file(content, path, {PLACES: json.dumps(places)})
        sizes[path.name] = path.stat().st_size
    record = {**RUN, "files": sizes, "model": MODEL}
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sizes}
    text = record_text(record, sums) if checksums else json.dumps(record)
    (folder / RECORD).write_text(text)
    return folder


@pytest.fixture(scope="module")
def tensors():
    parameters = weights(V11)
    return parameters | slots(parameters)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_torch_shards_of_all_processes_join_to_tensors(tmp_path, tensors, processes):
    folder = write_shards(tmp_path / "torch.ckpt-20", tensors, processes)
    source = open_source(folder)
    assert (source.kind, source.model, source.facts.step) == ("torch", V11, 20)
    assert (source.facts.activation, source.facts.dropout_rate) == ("gelu", 0.1)
    assert source.entries.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(source.load(name), array)
    assert open_source(folder, keep_slots=False).entries.keys() == weights(V11).keys()


def test_torch_shards_conversion_to_mesh_tensorflow_keeps_slots(tmp_path, tensors):
    folder = write_shards(tmp_path / "torch.ckpt-20", tensors)
    convert(folder, tmp_path / "mtf", to="mtf")
    converted = open_source(tmp_path / "mtf")
    assert (converted.kind, converted.facts.step) == ("mtf", 20)
    for name, array in tensors.items():
        np.testing.assert_array_equal(converted.load(name), array)


def test_torch_shards_next_to_mesh_tensorflow_newest_is_opened(tmp_path, tensors):
    parameters = weights(V11)
    write_shards(tmp_path / "torch.ckpt-20", tensors)
    write_mtf(tmp_path, parameters, step=10)
    assert open_source(tmp_path).kind == "torch"
    assert open_source(tmp_path, step=10).kind == "mtf"
    write_mtf(tmp_path, parameters, step=30)
    assert open_source(tmp_path).facts.step == 30
    assert open_source(tmp_path, step=20).kind == "torch"
    (tmp_path / "torch.ckpt-20" / RECORD).unlink()
    assert find_folder(tmp_path, None) is None


def record_of(**changes):
    def change(folder):
        path = folder / RECORD
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (record_of(files={}), "lists no files"),
        (record_of(files={"../x.safetensors": 1}), "cannot be the name of a file"),
        (record_of(step=-1), "its step is -1; expected"),
        (record_of(step="20"), "its step is '20'; expected"),
        (record_of(files={"a": "1"}), "its files.a is '1'; expected"),
        (record_of(schema=3), "its schema is not among 1, 2"),
        (record_of(schema=2), "does not have its checksum"),
        (record_of(model={"activation": "evil\nimport os"}), "names the activation"),
        (record_of(model={"dropout_rate": 7}), "dropout_rate = 7"),
        (lambda folder: next(folder.glob("shard-00002*")).unlink(), "is missing"),
        (lambda folder: next(folder.glob("shard-00002*")).write_bytes(b"x"), "has 1 bytes, not"),
    ],
)
def test_torch_shards_damaged_record_is_refused(tmp_path, tensors, damage, said):
    folder = write_shards(tmp_path / "torch.ckpt-20", tensors)
    damage(folder)
    with pytest.raises(UserError, match=said):
        open_source(folder)


@settings(max_examples=60)
@given(st.data())
def test_torch_shards_checksum_finds_any_flipped_bit(tmp_path_factory, data):
    """Wherever it is, in the weights, in a header or in the record."""
    folder = write_shards(
        tmp_path_factory.mktemp("m") / "torch.ckpt-20", weights(V11), 2, checksums=True
    )
    assert open_source(folder).facts.step == 20
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path} .*damaged.*remove {folder}"):
        open_source(folder)


def test_torch_shards_file_without_checksum_is_refused(tmp_path):
    folder = write_shards(tmp_path / "torch.ckpt-20", weights(V11), 2, checksums=True)
    record = json.loads((folder / RECORD).read_text())
    del record["checksum"]
    record["sha256"].popitem()
    (folder / RECORD).write_text(record_text(record, record["sha256"]))
    with pytest.raises(UserError, match="its sha256 has other files"):
        open_source(folder)


@pytest.mark.parametrize("place", [1, 10**9, -1, "0", None, True])
def test_torch_shards_rows_with_a_gap_are_refused(tmp_path, place):
    folder = write_shards(tmp_path / "torch.ckpt-20", weights(V11), 1)
    path = next(folder.glob("*.safetensors"))
    from safetensors.numpy import load_file

    places = {"weights/shared/embedding": {"saved_offsets": [place, 0]}}
    save_file(load_file(path), path, {PLACES: json.dumps(places)})
    record_of(files={path.name: path.stat().st_size})(folder)
    with pytest.raises(UserError, match="do not fit|cannot be read"):
        open_source(folder)


@settings(max_examples=60)
@given(st.data())
def test_torch_shards_changed_bytes_are_read_or_refused(tmp_path_factory, data):
    folder = write_shards(tmp_path_factory.mktemp("m") / "torch.ckpt-20", weights(V11), 1)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    # Mostly in the header.
    at = data.draw(st.integers(0, min(len(content), 6000) - 1))
    content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    try:
        source = open_source(folder)
        assert source.load("shared/embedding").shape == (128, 32)
    except UserError as error:
        assert len(str(error)) < 2000
