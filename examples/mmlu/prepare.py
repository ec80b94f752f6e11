"""Makes a data folder from MMLU's published csv files: a dataset with this folder's prompt for each subject.

    python prepare.py published data        # published/{dev,test}/SUBJECT_{dev,test}.csv

The published files have no line with the names of the columns. MMLU's five solved questions of a
subject (`dev`) become the split `train`, from which `--num_fewshot` draws.
"""

import sys
from pathlib import Path

NAMES = "question,A,B,C,D,answer\n"
SPLITS = {"dev": "train", "test": "test"}


def main(published: Path, data: Path) -> None:
    """Writes the rows and the prompt of each subject in `published` to the folder `data`."""
    prompt = (Path(__file__).parent / "templates.yaml").read_text()
    for test in sorted(published.glob("test/*_test.csv")):
        subject = test.name.removesuffix("_test.csv")
        folder = data / "mmlu" / subject
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "templates.yaml").write_text(prompt.replace("SUBJECT", subject))
        for split, ours in SPLITS.items():
            rows = (published / split / f"{subject}_{split}.csv").read_text("utf-8")
            (folder / f"{ours}.csv").write_text(NAMES + rows, "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
