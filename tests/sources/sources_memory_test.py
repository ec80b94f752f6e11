"""Peak memory of reading a small and a ten times larger file, each in a process of its own."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

# Anonymous memory only: pages of a mapped file count as resident, but the system can drop them.
READ = """
import sys
from pathlib import Path
from t0.sources.readers import reader_for

def anonymous_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

reader = reader_for(sys.argv[1], (Path(sys.argv[2]),))
peak, length = 0, 0
assert reader.count()
for i, row in enumerate(reader.rows(0, None)):
    length += len(row["t"])
    if i % 500 == 0:
        peak = max(peak, anonymous_kb())
assert length == 1000 * reader.count()
print(peak)
"""


def write(path, kind, count):
    table = pa.table({"t": [str(i % 10) * 999 + "x" for i in range(count)]})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=2000, use_dictionary=False)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    elif kind == "csv":
        path.write_text("\n".join(["t", *table["t"].to_pylist()]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(k, marks=pytest.mark.slow) for k in ("arrow", "csv", "jsonl")), "parquet"],
)
def test_reader_memory_does_not_grow_with_the_file(tmp_path, kind):
    peaks = []
    # csv is read up to 32 blocks of 1 MB ahead, so its smaller file must have about as many.
    for count in (50_000, 150_000) if kind == "csv" else (6_000, 60_000):
        path = tmp_path / f"{count}.{kind}"
        write(path, kind, count)
        command = [sys.executable, "-c", READ, kind, str(path)]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    # The larger file has 54 to 100 MB more text.
    assert peaks[1] - peaks[0] < 25_000, peaks
