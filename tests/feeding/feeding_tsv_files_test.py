"""TSV files of T5's `tsv_dataset_fn`: checked before the first step, unpacked, without marks."""

import codecs
import gzip
import io

import pytest
import seqio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mesh_tensorflow.transformer import dataset as mesh_dataset
from t5.data.preprocessors import parse_tsv
from t5.models.mesh_transformer import tsv_dataset_fn

from t0.compat import tf, tf1
from t0.errors import UserError
from t0.feeding.data_spec import open_dataset_function
from t0.feeding.uncached import DatasetBatches, check_tsv_file, checked_tsv_files, elements
from t0.sources.csv_reader import tsv_records

LENGTHS = {"inputs": 8, "targets": 8}
GOOD = [f"in {i}\tout {i % 3}" for i in range(30)]


def write(path, lines):
    data = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def examples(filename):
    """The rows of T5's function, as text."""
    vocabulary = seqio.ByteVocabulary()

    def make():
        with checked_tsv_files():
            return tsv_dataset_fn(
                filename=filename,
                sequence_length={"inputs": 64, "targets": 64},
                dataset_split="train",
                vocabulary=vocabulary,
                shuffle_buffer_size=1,
            )

    return [{n: x.tolist() for n, x in row.items()} for row in elements(make)]


def opened(filename):
    def function(**arguments):
        return tsv_dataset_fn(filename=filename, **arguments)

    vocabulary = seqio.ByteVocabulary()
    return open_dataset_function(
        function, 0, sequence_length=LENGTHS, vocabulary=vocabulary, dataset_split="train"
    )


@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"no tab", "line 8: has no tab, 'no tab'"),
        (b"one\ttwo\tthree", "line 8: has 3 columns"),
        (b"", "line 8: is empty"),
        (b"\r", "line 8: is empty"),
        (b"caf\xe9\tx", "line 8: not UTF-8: byte 0xe9 ('\u00e9' in Latin-1) after 'caf'"),
        (b"\xef\xbb\xbf", "line 8: has no tab"),
    ],
)
def test_tsv_file_bad_line_is_reported_before_training(tmp_path, name, line, told):
    lines = [x.encode() for x in GOOD]
    lines.insert(7, line)
    path = write(tmp_path / name, b"\n".join(lines))
    with pytest.raises(UserError) as error:
        opened(path)
    assert f"{path}, {told}" in str(error.value)
    # Gin adds lines about its calls, which commands do not print.
    assert str(error.value).splitlines()[0].endswith("inside a text by a space.") == (
        b"\xe9" not in line
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (codecs.BOM_UTF16_LE + "a\tb\n".encode("utf-16-le"), "iconv -f UTF-16 -t UTF-8 x.tsv"),
        (codecs.BOM_UTF8, "line 1: has no tab"),
    ],
)
def test_tsv_file_that_cannot_be_read_is_reported(tmp_path, data, told):
    with pytest.raises(UserError, match=told):
        opened(write(tmp_path / "x.tsv", data))
    with pytest.raises(UserError, match=r"absent\.tsv"):
        opened(str(tmp_path / "absent.tsv"))
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress("\n".join(GOOD).encode())[:-9])
    with pytest.raises(UserError, match=r"cut\.tsv\.gz: cannot be read"):
        opened(str(tmp_path / "cut.tsv.gz"))


def test_tsv_file_with_gzip_or_byte_order_mark_is_read(tmp_path, capsys, monkeypatch):
    # TensorFlow traces packing for seconds, and it does not depend on how a file is read.
    monkeypatch.setattr(mesh_dataset, "pack_or_pad", lambda dataset, *_, **__: dataset)
    plain = write(tmp_path / "x.tsv", GOOD)
    wanted = examples(plain)
    assert "x.tsv: 30 examples" in capsys.readouterr().out
    packed = write(tmp_path / "x.tsv.gz", GOOD)
    marked = write(tmp_path / "m.tsv", ["\ufeff" + GOOD[0], *GOOD[1:]])
    both = write(tmp_path / "b.tsv.gz", ["\ufeff" + GOOD[0], *GOOD[1:]])
    for name in (packed, marked, both, tmp_path / "x.tsv", [packed]):
        assert examples(name) == wanted
    assert examples([packed, marked]) == examples([plain, plain])
    assert isinstance(opened(both), DatasetBatches)


def test_tsv_file_without_faults_is_read_by_stock_tensorflow(tmp_path):
    path = write(tmp_path / "x.tsv", GOOD)
    with tf1.Graph().as_default() as graph, checked_tsv_files():
        vocabulary = seqio.ByteVocabulary()
        tsv_dataset_fn(
            filename=path, sequence_length=LENGTHS, dataset_split="train", vocabulary=vocabulary
        )
    with tf1.Graph().as_default() as stock:
        tsv_dataset_fn(
            filename=path, sequence_length=LENGTHS, dataset_split="train", vocabulary=vocabulary
        )
    assert [op.type for op in graph.get_operations()] == [op.type for op in stock.get_operations()]
    assert not check_tsv_file(path)


TEXT = st.text(st.sampled_from('"" a,\\'), max_size=6)


# Few long lists, because TensorFlow traces the pipeline of each list.
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=60))
def test_tsv_file_rows_equal_t5_parse_tsv(pairs):
    lines = [f"{a}\t{b}" for a, b in pairs]
    dataset = parse_tsv(tf.data.Dataset.from_tensor_slices(lines), field_names=["a", "b"])
    wanted = [[row["a"].decode(), row["b"].decode()] for row in dataset.as_numpy_iterator()]
    found = [cells for _, cells in tsv_records(io.StringIO("".join(f"{x}\n" for x in lines)))]

    def unquoted(cell):
        inner = cell[1:-1]
        whole = len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner.replace('""', "")
        return inner.replace('""', '"') if whole else cell

    assert found == [[unquoted(cell) for cell in row] for row in wanted]
