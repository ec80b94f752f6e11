"""Makes the pictures of README.md and of the site, in docs/pictures/.

    bin/quickstart && .venv/bin/python docs/make_pictures.py    # all pictures
    .venv/bin/python docs/make_pictures.py speed examples       # those that need no run

- report: the page of bin/quickstart's report, opened in headless Chromium.
- terminal: the output of `t0 show` on bin/quickstart's data, and bin/quickstart's prediction.
- speed: ratios of benchmarks/history.jsonl over the commits.
- examples: copies of the plots in examples/, because the site cannot show files outside docs/.
"""

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from summary import FIGURES, HISTORY, Figure, has_bfloat16, ratio  # noqa: E402

REPORT_PIXELS = (1280, 1100)
TERMINAL_COLUMNS = 100
MOST_TERMINAL_LINES = 34
SPEED_INCHES = (4.2, 2.4)
# Pictures of speed: file -> the quantity in `FIGURES` and the other program.
SPEED = {
    "speed_training": ("train t5.1.1.small, bfloat16, s/step", "Mesh TensorFlow"),
    "speed_training_transformers": ("train t5.1.1.small, bfloat16, s/step", "Transformers"),
    "speed_ranking": ("rank RTE, bfloat16, choices/s", "Transformers"),
    "speed_decoding": ("decode greedily, bfloat16, tokens/s", "Transformers"),
    "speed_caching": ("cache 22 tasks, records/s", "SeqIO"),
    "speed_tokenizing": ("cache all tasks with data, processor s", "SentencePiece alone"),
}
# Half the peak FLOP/s of a core with AVX-512 BF16, and the full peak, differ by this rate.
FULL_PEAK_GFLOPS = 600


def make_report(run: Path) -> None:
    """Takes a picture of the upper part of the report's page."""
    width, height = REPORT_PIXELS
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={width},{height}",
                "--virtual-time-budget=20000", f"--screenshot={PICTURES / 'report.png'}",
                (run / "report" / "report.html").resolve().as_uri(),
            ],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip


def make_terminal(run: Path) -> None:
    """Draws the output of `t0 show` on the quickstart's data, and the quickstart's prediction."""
    from t0.cli.quickstart import PROMPT

    vocabulary = "quickstart_out/vocabulary/mini.model"
    show = "t0 show super_glue_rte_GPT_3_style --data_dir=quickstart_out/data --row=0"
    show += f" --vocab={vocabulary}"
    words = show.replace("quickstart_out", str(run.absolute())).split()
    program = Path(sys.executable).parent / words[0]
    done = subprocess.run([program, *words[1:]], check=True, capture_output=True, text=True)
    _write_svg(PICTURES / "show.svg", f"$ {show}\n{done.stdout}")
    files = "quickstart_out/model quickstart_out/rows.csv --output quickstart_out/predictions.csv"
    predict = f"$ t0 predict {files} --prompt={PROMPT}\n$ cat quickstart_out/predictions.csv\n"
    answers = (run / "predictions.csv").read_text(encoding="utf-8")
    _write_svg(PICTURES / "predict.svg", predict + answers)


def _write_svg(path: Path, text: str) -> None:
    """Draws text as a terminal."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    console = Console(record=True, width=TERMINAL_COLUMNS, file=io.StringIO())
    for line in text.splitlines()[:MOST_TERMINAL_LINES]:
        style = "bold" if line.startswith("$ ") else ""
        console.print(line, style=style, markup=False, highlight=False)
    svg = console.export_svg(title="t0", theme=MONOKAI, unique_id=path.stem)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts on the network
    path.write_text(re.sub(r"[ \t]+$|^\n+", "", svg, flags=re.MULTILINE), encoding="utf-8")


def make_speed() -> None:
    """Draws how many times as fast as another program each commit is, one picture per work."""
    records = [json.loads(line) for line in HISTORY.read_text(encoding="utf-8").splitlines()]
    for name, (quantity, peer) in SPEED.items():
        [figure] = [f for f in FIGURES if (f.what, f.peer_name) == (quantity, peer)]
        measured = [
            (record, value)
            for record in records
            if record["claim"] == figure.claim and has_bfloat16(record)
            if (value := ratio(figure, record)) is not None
        ]
        (PICTURES / f"{name}.png").write_bytes(_speed_png(figure, measured))


def _speed_png(figure: Figure, measured: list[tuple[dict[str, Any], float]]) -> bytes:
    from t0.reports import plots

    picture = plots.new_figure(*SPEED_INCHES)
    with plots.styled():
        axes = picture.subplots()
        axes.set_title(f"{figure.what.rpartition(', ')[0]}\ncompared with {figure.peer_name}")
        axes.set_ylabel("times as fast")
        values = [value for _, value in measured]
        axes.plot(values, color=plots.run_colour(0), linewidth=1.2)
        for index, (record, value) in enumerate(measured):
            full = record["machine"]["product_gflops"]["bfloat16"] > FULL_PEAK_GFLOPS
            fill = plots.run_colour(0) if full else "white"
            axes.plot(index, value, "o", color=plots.run_colour(0), markerfacecolor=fill)
        axes.axhline(1, color=plots.MUTED, linewidth=0.8, linestyle="--")
        axes.set_ylim(0, 1.15 * max(values))
        labels = [f"{record['commit'][:7]}\n{record['date'][5:]}" for record, _ in measured]
        axes.set_xticks(range(len(labels)), labels, fontsize=6)
    return plots.png_bytes(picture)


def copy_plots() -> None:
    """Copies the plot of each example."""
    for plot in sorted(ROOT.glob("examples/*/plot.png")):
        shutil.copyfile(plot, PICTURES / f"{plot.parent.name}.png")


def main() -> None:
    """Makes the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ("report", "terminal", "speed", "examples")
    parser.add_argument("pictures", nargs="*", choices=[[], *kinds], help="default: all")
    run_help = "the output folder of bin/quickstart"
    parser.add_argument("--run", type=Path, default=ROOT / "quickstart_out", help=run_help)
    args = parser.parse_args()
    if not args.pictures or {"report", "terminal"} & {*args.pictures}:
        if not (args.run / "report" / "report.html").is_file():
            sys.exit(
                f"{args.run} has no report: run bin/quickstart first, or name its folder: --run"
            )
        if not shutil.which("chromium"):
            sys.exit("chromium is not installed: it opens the report's page")
    PICTURES.mkdir(exist_ok=True)
    makers = {
        "report": lambda: make_report(args.run),
        "terminal": lambda: make_terminal(args.run),
        "speed": make_speed,
        "examples": copy_plots,
    }
    for kind in args.pictures or kinds:
        makers[kind]()


if __name__ == "__main__":
    main()
