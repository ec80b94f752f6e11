"""Prints the folder of the TensorFlow that a Python has, and which packages to take from there.

bin/setup runs this file by itself, as `python -I`, with which a user's own packages do not count:

    $ python3.10 -I t0/cli/system_tensorflow.py
    /usr/local/lib/python3.10/dist-packages
    tensorflow keras tensorboard
"""

import importlib.metadata
import sys

VERSION = "2.15.1"
# What was built or released with TensorFlow, and the release that fits.
TAKEN = {
    "tensorflow": "2.15.",
    "tensorflow-text": "2.15.",
    "tensorflow-estimator": "2.15.",
    "tensorflow-io-gcs-filesystem": "",
    "keras": "2.15.",
    "tensorboard": "2.15.",
}


def main() -> None:
    """Prints the two lines, or exits with what was found instead."""
    found: dict[str, tuple[str, str]] = {}
    for one in importlib.metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        found.setdefault(name, (one.version, str(one.locate_file(""))))
    version, folder = found.get("tensorflow", ("none", ""))
    if version.partition("+")[0] != VERSION:
        sys.exit(f"found TensorFlow {version} of {sys.executable}")
    there = {name: its for name, (its, place) in found.items() if place == folder}
    print(folder)
    print(*(n for n, its in TAKEN.items() if n in there and there[n].startswith(its)))


if __name__ == "__main__":
    main()
