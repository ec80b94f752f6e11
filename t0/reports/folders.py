"""Names for models by their folders: the last part of the path, or as many as tell them apart.

>>> names = telling_names([PurePosixPath("out/sni/model"), PurePosixPath("out/qa/model")])
>>> sorted(names.values())
['qa/model', 'sni/model']
"""

from collections.abc import Collection
from pathlib import PurePath, PurePosixPath


def telling_names(folders: Collection[PurePath]) -> dict[PurePath, str]:
    """Returns folder -> the shortest end of its path that no other folder has."""
    return {folder: _telling_name(folder, folders) for folder in folders}


def _telling_name(folder: PurePath, folders: Collection[PurePath]) -> str:
    others = [other for other in folders if not ends_alike(folder, other)]
    for count in range(1, len(folder.parts)):
        tail = folder.parts[-count:]
        if all(other.parts[-count:] != tail for other in others):
            return str(PurePosixPath(*tail))
    return str(folder)


def ends_alike(one: PurePath, other: PurePath) -> bool:
    """Whether one path is the end of the other: the same folder, as far as can be seen."""
    count = min(len(one.parts), len(other.parts))
    return one.parts[len(one.parts) - count :] == other.parts[len(other.parts) - count :]
