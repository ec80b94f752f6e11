"""The progress line counts, prints lines that stay, and keeps logs readable."""

from t0.scoring.progress_line import ProgressLine


def test_lines_stay_and_no_live_line_goes_into_a_log(capsys):
    with ProgressLine(10, unit="choice", doing="scoring") as progress:
        progress.count_before(4)
        progress.count_before(2)
        progress.count(3, note="7 tokens/s")
        progress.print("rte: done")
    printed = capsys.readouterr()
    assert printed.out == "rte: done\n"
    assert printed.err == ""
    assert progress.before == 6
    assert progress.seconds > 0
