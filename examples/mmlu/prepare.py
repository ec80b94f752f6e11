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
    tests = sorted(published.glob("test/*_test.csv"))
    if not tests:
        raise SystemExit(f"{published} has no file test/SUBJECT_test.csv: name the folder of MMLU")
    for test in tests:
        subject = test.name.removesuffix("_test.csv")
        folder = data / "mmlu" / subject
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "templates.yaml").write_text(prompt.replace("SUBJECT", subject))
        for split, ours in SPLITS.items():
            file = published / split / f"{subject}_{split}.csv"
            if not file.is_file():
                raise SystemExit(f"{file} is missing: each subject needs its dev and test file")
            rows = file.read_text("utf-8-sig")  # a byte order mark is not part of a question
            (folder / f"{ours}.csv").write_text(NAMES + rows, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
