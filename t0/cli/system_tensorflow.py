"""Prints the folder in which a Python installation has TensorFlow, and the packages to use.

bin/setup runs this file as a script with `python -I`. With this option, Python ignores packages
that were installed with `pip install --user`:

    $ python3.10 -I t0/cli/system_tensorflow.py
    /usr/local/lib/python3.10/dist-packages
    tensorflow keras tensorboard
"""

import contextlib
import importlib.metadata
import sys

# Package that was built or released together with TensorFlow -> prefix of the version that fits.
RELEASES = {
    "tensorflow": "2.15.1",
    "tensorflow-text": "2.15.",
    "tensorflow-estimator": "2.15.",
    "tensorflow-io-gcs-filesystem": "",
    "keras": "2.15.",
    "tensorboard": "2.15.",
}


def main() -> None:
    """Prints the folder and the packages. If TensorFlow does not fit, exits with a message."""
    folders = {}
    for name, release in RELEASES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            package = importlib.metadata.distribution(name)
            if package.version.startswith(release):
                folders[name] = str(package.locate_file(""))
    folder = folders.get("tensorflow")
    if not folder:
        sys.exit(f"{sys.executable} has no TensorFlow 2.15.1 that is installed for all users")
    print(folder)
    print(*(name for name in folders if folders[name] == folder))


if __name__ == "__main__":
    main()
