import json
import os

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources import arrow_readers, parquet_sizes
from t0.sources.arrow_readers import Arrow, Parquet, saved_shards

ROWS = [{"i": i, "c": {"text": [str(i), ""], "n": [i, None]}} for i in range(1200)]


def parquet(path, rows):
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    return Parquet(path)


def arrow_file(path, rows, new=pa.ipc.new_file):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return Arrow((path,))


def arrow_stream(path, rows):
    return arrow_file(path, rows, pa.ipc.new_stream)


def saved(path, rows):
    datasets.Dataset.from_list(rows).save_to_disk(path, num_shards=3)
    return Arrow(saved_shards(path))


@pytest.fixture(params=[parquet, arrow_file, arrow_stream, saved], scope="module")
def reader(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("data") / "x", ROWS)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 1300), stop=st.integers(0, 1300) | st.none())
def test_arrow_reader_rows_equal_what_was_written(reader, start, stop):
    assert list(reader.rows(start, stop)) == ROWS[start:stop]


def test_arrow_reader_count_and_columns(reader):
    assert reader.count() == 1200
    assert reader.columns() == ("i", "c")


@pytest.mark.parametrize("write", [parquet, arrow_file, arrow_stream])
def test_arrow_reader_truncated_file_is_named(tmp_path, write):
    whole = write(tmp_path / "whole", ROWS)
    path = tmp_path / "cut"
    data = (tmp_path / "whole").read_bytes()
    path.write_bytes(data[: len(data) // 2])
    cut = Parquet(path) if isinstance(whole, Parquet) else Arrow((path,))
    with pytest.raises(UserError, match="cut: cannot be read"):
        list(cut.rows(0, None))


@pytest.mark.parametrize("kind", [Parquet, lambda path: Arrow((path,))])
@pytest.mark.parametrize("data", [b"", b"no such format"])
def test_arrow_reader_file_of_another_format_is_named(tmp_path, kind, data):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UserError, match="x: cannot be read"):
        kind(path).columns()


def test_saved_dataset_missing_shard_is_named(tmp_path):
    saved(tmp_path, ROWS)
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UserError, match="data-00001-of-00003.arrow"):
        saved_shards(tmp_path)


@pytest.mark.parametrize("state", ["{", "[]", json.dumps({"_data_files": None})])
def test_saved_dataset_malformed_state_json_is_refused(tmp_path, state):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(UserError, match=r"state\.json"):
        saved_shards(tmp_path)


def test_saved_dataset_file_outside_its_folder_is_refused(tmp_path):
    datasets.Dataset.from_list([{"secret": 1}]).save_to_disk(tmp_path / "other")
    (name,) = [path.name for path in (tmp_path / "other").glob("*.arrow")]
    folder = tmp_path / "mine"
    for outside in (f"../other/{name}", str(tmp_path / "other" / name)):
        folder.mkdir(exist_ok=True)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": outside}]}))
        with pytest.raises(UserError, match=r"state\.json: .* cannot be the name of a file"):
            saved_shards(folder)


def test_arrow_reader_utf8_bytes_become_text(tmp_path):
    rows = [
        {"b": b"yes", "l": [b"a", None], "s": {"x": "\u00fc".encode()}, "n": 1},
        {"b": b"\xff", "l": [], "s": {"x": None}, "n": 2},
    ]
    wanted = [
        {"b": "yes", "l": ["a", None], "s": {"x": "\u00fc"}, "n": 1},
        {"b": b"\xff", "l": [], "s": {"x": None}, "n": 2},
    ]
    for number, make in enumerate((parquet, arrow_file, arrow_stream)):
        assert list(make(tmp_path / f"{number}", rows).rows(0, None)) == wanted


def _strings(offsets, data):
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.table({"text": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)})


@pytest.mark.parametrize(("offsets", "data"), [([0, 3], b"\xf2ab"), ([0, 3, 1], b"abc")])
def test_arrow_reader_damaged_strings_are_refused(tmp_path, offsets, data):
    table, path = _strings(offsets, data), tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=f"{path}: cannot be read"):
        list(Arrow((path,)).rows(0, None))


def write_repeated(path, value, rows, **options):
    """Writes rows that repeat a text."""
    indices = pa.array(np.zeros(rows, np.int32))
    text = pa.DictionaryArray.from_arrays(indices, pa.array([value]))
    columns = {"text": text, "row": pa.array(range(rows))}
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False, **options}
    pyarrow.parquet.write_table(pa.table(columns), path, **options)


def test_parquet_value_of_a_dictionary_is_read_in_smaller_batches(tmp_path, monkeypatch):
    # An eighth of the sizes that commands read.
    monkeypatch.setattr(arrow_readers, "_BATCH_BYTES", 2**26)
    monkeypatch.setattr(arrow_readers, "_SMALL_DICTIONARY", 2**18)
    value, path = "x" * 2**17 * 3, tmp_path / "x.parquet"
    write_repeated(path, value, 700, dictionary_pagesize_limit=2**30)
    assert path.stat().st_size < 10_000
    sizes = []
    rows_between = arrow_readers.rows_between

    def record(where, batches, *bounds):
        kept = (sizes.append(batch.num_rows) or batch for batch in batches)
        return rows_between(where, kept, *bounds)

    monkeypatch.setattr(arrow_readers, "rows_between", record)
    rows = list(Parquet(path).rows(0, 200))
    assert [row["row"] for row in rows] == list(range(200))
    assert rows[0]["text"] == rows[199]["text"] == value
    assert max(sizes) < 2**26 // len(value) + 1


def test_parquet_of_short_texts_is_read_512_rows_at_a_time(tmp_path):
    path = tmp_path / "x.parquet"
    write_repeated(path, "yes", 100_000)
    assert Parquet(path)._rows_at_once(0) == 512
    assert sum(1 for _ in Parquet(path).rows(99_000, None)) == 1000


def test_parquet_whose_kilobytes_are_gigabytes_is_refused(tmp_path):
    texts = pa.table({"text": ["y" * 2**25] * 17})
    path = tmp_path / "text.parquet"
    pyarrow.parquet.write_table(texts, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"its rows have 570,.* bytes: no texts are so alike"):
        next(Parquet(path).rows(0, 1))
    numbers = pa.array(np.zeros(10**7, np.int64))
    path = tmp_path / "numbers.parquet"
    pyarrow.parquet.write_table(
        pa.table({"n": pa.ListArray.from_arrays([0, 10**7], numbers)}), path, compression="zstd"
    )
    with pytest.raises(UserError, match=r"a row has about 80,\d{3},\d{3} bytes; the limit"):
        next(Parquet(path).rows(0, 1))


def test_parquet_sizes_are_those_of_the_pages(tmp_path):
    rng = np.random.default_rng(4)
    columns = {
        "word": [f"w{n}" for n in rng.integers(0, 40, 5000)],
        "text": ["".join(map(chr, rng.integers(97, 120, 60))) for _ in range(5000)],
        "number": rng.integers(0, 2**40, 5000),
        "list": [list(range(n % 4)) for n in range(5000)],
        "flag": rng.random(5000) > 0.5,
        "struct": [{"a": 1.5, "b": None if n % 3 else "x"} for n in range(5000)],
    }
    for number, options in enumerate(
        (
            {"compression": "zstd"},
            {"compression": "none", "data_page_version": "2.0"},
            {"compression": "snappy", "use_dictionary": False, "write_page_index": True},
            {"compression": "gzip", "write_statistics": False, "data_page_size": 2000},
        )
    ):
        path = tmp_path / f"{number}.parquet"
        pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=1500, **options)
        metadata = pyarrow.parquet.read_metadata(path)
        groups = parquet_sizes.row_groups(path)
        assert [rows for rows, _ in groups] == [1500, 1500, 1500, 500]
        for group, (_, found) in enumerate(groups):
            for index, sizes in enumerate(found):
                column = metadata.row_group(group).column(index)
                assert sizes.name == column.path_in_schema
                assert sizes.values == column.num_values
                assert sizes.stored == column.total_compressed_size
                # The footer also counts the headers of pages.
                assert 0 < column.total_uncompressed_size - sizes.unpacked < 40_000
                assert (sizes.dictionary > 0) == bool(column.has_dictionary_page)
                assert (sizes.width is None) == (column.physical_type == "BYTE_ARRAY")


def test_parquet_whose_footer_lies_about_its_pages_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_readers, "_BATCH_BYTES", 2**26)
    path = tmp_path / "x.parquet"
    texts = pa.table({"text": ["y" * 2**22] * 17})
    options = {"use_dictionary": False, "store_schema": False, "write_statistics": False}
    pyarrow.parquet.write_table(texts, path, compression="zstd", **options)
    whole = path.read_bytes()
    column = pyarrow.parquet.read_metadata(path).row_group(0).column(0)
    size = zigzag(column.total_uncompressed_size)
    assert whole.count(size) == 2  # of the column, and of the row group
    smaller = zigzag(500_000)
    assert len(smaller) < len(size)  # so zeros follow, which do not change the value
    padded = [*smaller[:-1], smaller[-1] | 128, *[128] * (len(size) - len(smaller) - 1), 0]
    path.write_bytes(whole.replace(size, bytes(padded)))
    forged = pyarrow.parquet.read_metadata(path).row_group(0)
    assert forged.total_byte_size == forged.column(0).total_uncompressed_size == 500_000
    with pytest.raises(UserError, match=r"its rows have 71,.* bytes: no texts are so alike"):
        next(Parquet(path).rows(0, 1))


def zigzag(number):
    """A number in Thrift's compact protocol."""
    value, encoded = number << 1, []
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def test_parquet_with_damaged_metadata_does_not_end_the_process(tmp_path):
    parquet(tmp_path / "whole.parquet", ROWS[:5])
    whole, path = (tmp_path / "whole.parquet").read_bytes(), tmp_path / "x.parquet"
    footer = int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for position in range(len(whole) - 8 - footer, len(whole) - 8):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 2]) + whole[position + 1 :])
        try:
            list(Parquet(path).rows(0, None))
        except UserError:
            refused += 1
    assert refused > 100


def test_arrow_and_parquet_pipes_are_refused(tmp_path):
    for name, reader in (("x.parquet", Parquet), ("x.arrow", lambda path: Arrow((path,)))):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="a pipe or a device"):
            reader(tmp_path / name).columns()


@pytest.mark.parametrize("new_writer", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_arrow_compressed_batches_are_read_within_a_limit(
    tmp_path, monkeypatch, new_writer, compression
):
    texts = pa.array([f"{i} {i % 7}" * 20 for i in range(1000)])
    table = pa.table({"a": texts, "d": pa.array(["p", "q"] * 500).dictionary_encode()})
    path, options = tmp_path / "x.arrow", pa.ipc.IpcWriteOptions(compression=compression)
    with new_writer(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)
    assert list(Arrow((path,)).rows(290, 310)) == table.to_pylist()[290:310]
    assert Arrow((path,)).count() == 1000
    monkeypatch.setattr(arrow_readers, "_BATCH_BYTES", 2**20)
    monkeypatch.setattr(arrow_readers, "_LARGEST_RATIO", 100)
    alike = pa.record_batch({"a": pa.array([b"\0" * 6_000_000], pa.large_binary())})
    for column in (alike["a"], alike["a"].dictionary_encode()):
        batch = pa.record_batch({"a": column})
        with new_writer(str(path), batch.schema, options=options) as writer:
            writer.write_batch(batch)
        with pytest.raises(UserError, match=r"6,000,.* bytes, compressed: no texts are so alike"):
            Arrow((path,)).count()


def test_arrow_file_whose_footer_leaves_out_a_batch_is_refused(tmp_path):
    path = tmp_path / "x.arrow"
    batch = pa.record_batch({"a": [1, 2]})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    one = path.read_bytes()
    with pa.ipc.new_stream(str(path), batch.schema) as writer:
        for _ in range(2):
            writer.write_batch(batch)
    two = path.read_bytes()
    footer = one[one.rindex(b"\xff\xff\xff\xff\0\0\0\0") :]
    path.write_bytes(b"ARROW1\0\0" + two[: -len(b"\xff\xff\xff\xff\0\0\0\0")] + footer)
    with pytest.raises(UserError, match="it has 2 batches, but its footer lists 1"):
        Arrow((path,)).count()
