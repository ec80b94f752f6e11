"""Prints the folder in which a Python has TensorFlow, and the packages to use from there.

bin/setup runs this file as a script with `python -I`, which ignores packages installed per user:

    $ python3.10 -I t0/cli/system_tensorflow.py
    /usr/local/lib/python3.10/dist-packages
    tensorflow keras tensorboard
"""

import importlib.metadata
import sys

VERSION = "2.15.1"
# Packages that were built or released with TensorFlow -> prefix of the version that matches.
RELEASES = {
    "tensorflow": "2.15.",
    "tensorflow-text": "2.15.",
    "tensorflow-estimator": "2.15.",
    "tensorflow-io-gcs-filesystem": "",
    "keras": "2.15.",
    "tensorboard": "2.15.",
}


def main() -> None:
    """Prints the folder and the packages; exits with a message if TensorFlow does not fit."""
    distributions: dict[str, tuple[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        distributions.setdefault(name, (distribution.version, str(distribution.locate_file(""))))
    version, folder = distributions.get("tensorflow", ("none", ""))
    if version.partition("+")[0] != VERSION:
        sys.exit(f"found TensorFlow {version} of {sys.executable}")
    packages = {
        name: release for name, (release, location) in distributions.items() if location == folder
    }
    print(folder)
    print(
        *(n for n, release in RELEASES.items() if n in packages and packages[n].startswith(release))
    )


if __name__ == "__main__":
    main()
