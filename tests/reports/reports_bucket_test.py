"""Reports of results in a bucket, written to a bucket."""

from pathlib import Path

import pytest

from t0.cli.main import main


@pytest.mark.usefixtures("rough_pictures")
def test_report_in_a_bucket_equals_report_on_disk(two_runs, metrics, tmp_path, bucket, capsys):
    folder = tmp_path / "first" / "eval"
    for path in [*folder.rglob("*.json*"), metrics]:
        bucket.put("b", f"first/{path.relative_to(tmp_path / 'first')}", path.read_bytes())
    local = tmp_path / "report"
    assert main(["report", str(folder), "--output", str(local), "--metrics", str(metrics)]) == 0
    words = ["gs://b/first/eval", "--output", "gs://b/report", "--metrics", "gs://b/first"]
    assert main(["report", *words]) == 0
    out = capsys.readouterr().out
    assert "gs://b/report/report.html\n" in out
    written = {name: text for name, text in bucket.files("b").items() if name.startswith("report/")}
    assert {Path(name).name for name in written} == {path.name for path in local.iterdir()}
    assert written["report/report.csv"] == (local / "report.csv").read_bytes().replace(
        str(tmp_path).encode(), b"gs://b"
    )
    last = [change.name for change in bucket.changes() if change.content][-1]
    assert last == "b/report/report.html"
