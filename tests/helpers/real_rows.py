"""Real rows of T0's datasets: copies beside the checkout, or else the first rows of some.

    ROWS / "super_glue" / "cb" / "validation.jsonl.gz"     # a data folder

Tests that hold for any number of rows use them; what needs whole splits skips without the copies.
"""

from pathlib import Path

COPIES = Path(__file__).resolve().parents[3] / "shared" / "data"
SAMPLES = Path(__file__).resolve().parents[1] / "fixtures" / "data"
ROWS = COPIES if COPIES.is_dir() else SAMPLES
