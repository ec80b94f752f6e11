"""Prints the folder in which a Python installation has TensorFlow, and the packages to use.

bin/setup runs this file as a script with `python -I`. With this option, Python ignores packages
that were installed with `pip install --user`:

    $ python3.10 -I t0/cli/system_tensorflow.py
    /usr/local/lib/python3.10/dist-packages
    tensorflow keras tensorboard
"""

import importlib.metadata
import sys

VERSION = "2.15.1"
# Package that was built or released together with TensorFlow -> prefix of the version that fits.
RELEASES = {
    "tensorflow": "2.15.",
    "tensorflow-text": "2.15.",
    "tensorflow-estimator": "2.15.",
    "tensorflow-io-gcs-filesystem": "",
    "keras": "2.15.",
    "tensorboard": "2.15.",
}


def main() -> None:
    """Prints the folder and the packages. If TensorFlow does not fit, exits with a message."""
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
