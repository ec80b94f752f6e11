"""The versions of packages that work together, and what fails with other versions.

    for package in WANTED:
        row = check(package)
        print(row.name, row.found, row.wanted, row.fits)

The ranges contain the pins of both locks: a version in a range is known or expected to
work, a version outside is known to fail. No package is imported to find its version.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """One row of `WANTED`: a package, its range, and the package that sets the range.

    Attributes:
      name: the distribution's name.
      range: a PEP 440 specifier.
      partner: the package that sets the range, or "" where this project sets it.
      reason: what happens outside the range.
      also_as: other distributions that install the same modules.
    """

    name: str
    range: str
    partner: str
    reason: str
    also_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The installed version of one wanted package.

    Attributes:
      name: the installed distribution, or the wanted one where none is installed.
      found: its version, None where it is not installed.
      wanted: the range.
      fits: whether the version is in the range.
    """

    name: str
    found: str | None
    wanted: str
    fits: bool


WANTED = (
    Wanted("tensorflow", ">=2.15.1,<2.16", "", "2.16 removed tf.estimator", ("tensorflow-cpu",)),
    Wanted("tensorflow-text", ">=2.15,<2.16", "tensorflow", "built for another: undefined symbol"),
    Wanted("mesh-tensorflow", ">=0.1.21,<0.2", "t5", "checkpoints depend on its names"),
    Wanted("t5", ">=0.9.4,<0.10", "mesh-tensorflow", "gin files depend on its names"),
    Wanted("seqio", ">=0.0.18.dev0,<0.1", "t5", "its task classes change", ("seqio-nightly",)),
    Wanted("gin-config", ">=0.5,<0.6", "mesh-tensorflow", "parses the gin files"),
    Wanted("promptsource", "==0.1.0", "", "the prompts of the paper; others change tasks"),
    Wanted("sentencepiece", ">=0.2,<0.2.1", "protobuf", "newer needs protobuf 5"),
    Wanted("protobuf", ">=4.25.2,<5", "tensorflow", "TensorFlow 2.15 refuses 5"),
    Wanted("numpy", ">=1.23.5,<2", "tensorflow", "TensorFlow 2.15 is built for numpy 1"),
    Wanted("pyarrow", ">=21,<24", "numpy", "newer needs numpy 2"),
    Wanted("datasets", ">=4,<6", "pyarrow", "older runs dataset scripts"),
    Wanted("apache-beam", ">=2.60,<3", "protobuf", "the Beam runner of the caching"),
    Wanted("tensorflow-metadata", ">=1.13.1,<1.16", "protobuf", "newer needs protobuf 5"),
    Wanted("setuptools", "<81", "mesh-tensorflow", "81 removed pkg_resources"),
)

Look = Callable[[str], str | None]


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check(wanted: Wanted, look: Look = installed_version) -> Found:
    """Compares the installed version with one row of the table.

    Args:
      wanted: the row.
      look: returns a distribution's version, or None.
    """
    for name in (wanted.name, *wanted.also_as):
        version = look(name)
        if version is not None:
            return Found(name, version, wanted.range, _in_range(version, wanted.range))
    return Found(wanted.name, None, wanted.range, fits=False)


def complaint(wanted: Wanted, row: Found, look: Look = installed_version) -> str:
    """Returns one line that names the pair that does not go together and the wanted range.

    >>> row = Wanted("protobuf", ">=4.25.2,<5", "tensorflow", "it refuses 5")
    >>> versions = {"protobuf": "5.29.0", "tensorflow": "2.15.1"}.get
    >>> complaint(row, check(row, versions), versions)
    'protobuf 5.29.0 with tensorflow 2.15.1: wanted protobuf >=4.25.2,<5 (it refuses 5)'
    """
    if row.found is None:
        return f"{row.name} is not installed: wanted {wanted.range}"
    partner_version = look(wanted.partner) if wanted.partner else None
    pair = f" with {wanted.partner} {partner_version}" if partner_version else ""
    return f"{row.name} {row.found}{pair}: wanted {row.name} {wanted.range} ({wanted.reason})"


def _in_range(version: str, wanted_range: str) -> bool:
    # Imported here, so that the caller can report that packaging itself is missing.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted_range).contains(version, prereleases=True)
