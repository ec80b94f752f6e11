"""`t0 verify CACHE_DIR`: checks the files of caches, and lists damaged and stale caches.

t0 verify /data/cache                       # all tasks below the directory
t0 verify /data/cache/super_glue_rte_should_assume --json
t0 verify /data/cache --module_import=my_tasks --data_dir=/data/mine

A cache is stale if its prompt, data, vocabulary or modules have changed since it was written.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from tqdm import tqdm

from t0.caching.verify import find_caches, has_checksums, verify_cache
from t0.cli.arguments import add_shared
from t0.errors import printable, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("cache_dir", nargs="+", help="a task's cache, or a folder with several")
    add_shared(parser, "data_dir", "vocab", "module_import", "json")


def main(args: argparse.Namespace) -> int:
    """Prints the damaged and stale caches; returns 1 if there are any, else 0.

    Raises:
      UserError: a folder has no cache, or a module or the vocabulary does not exist.
    """
    caches = [cache for directory in args.cache_dir for cache in find_caches(directory)]
    faults: dict[str, list[str]] = {}
    for cache in tqdm(caches, "verifying", disable=None, leave=False):
        damage = list(verify_cache(cache))
        if damage:
            faults[cache] = damage
    without_checksums = [
        cache for cache in caches if cache not in faults and not has_checksums(cache)
    ]
    stale, unknown = _compare([cache for cache in caches if cache not in faults], args)
    if args.json:
        report = {"caches": len(caches), "faults": faults, "without_checksums": without_checksums}
        json.dump(report | {"stale": stale, "not_compared": unknown}, sys.stdout, indent=1)
        print()
        return 1 if faults or stale else 0
    for damage in faults.values():
        say("\n".join(damage))
    for cache in without_checksums:
        say(f"{cache}: complete, without checksums")
    for cache, changed in stale.items():
        line = f"{cache}: stale, changed since it was written: {'; '.join(changed)}"
        say(f"{line}. seqio_cache_tasks writes the task again")
    print(_summary(caches, faults, without_checksums, stale, unknown), file=sys.stderr)
    return 1 if faults or stale else 0


def _summary(
    caches: Sequence[str],
    faults: dict[str, list[str]],
    without_checksums: Sequence[str],
    stale: dict[str, list[str]],
    unknown: dict[str, str],
) -> str:
    summary = f"{len(caches) - len(faults)} of {len(caches)} caches are whole"
    if without_checksums:
        summary += f", {len(without_checksums)} of them without checksums, as SeqIO writes them"
    if stale:
        summary += f"; {len(stale)} are stale"
    for why in dict.fromkeys(unknown.values()):
        names = [printable(cache) for cache, reason in unknown.items() if reason == why]
        summary += f"\n{len(names)} not compared with prompts and data, such as {names[0]}: {why}"
    return summary


def _compare(
    caches: Sequence[str], args: argparse.Namespace
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Returns (cache -> its changes since it was written, cache -> why these are unknown)."""
    from t0.caching.cache_files import read_provenance
    from t0.caching.cache_plan import NO_RECORD

    recorded = {cache: made_from for cache in caches if (made_from := read_provenance(cache))}
    unknown = {cache: NO_RECORD for cache in caches if cache not in recorded}
    if not recorded:
        return {}, unknown
    from t0.caching import cache_files, provenance, workers
    from t0.caching.cache_plan import Setup
    from t0.compat import seqio

    modules = args.module_import or ["t0.seqio_tasks"]
    workers.prepare(Setup(modules, args.data_dir or (), args.vocab))
    stale = {}
    for cache, made_from in recorded.items():
        name = cache_files.read_manifest(cache).get("task")
        if name not in seqio.TaskRegistry.names():
            unknown[cache] = "its task is not registered: add --data_dir or --module_import"
        elif changed := provenance.changes(made_from, seqio.TaskRegistry.get(name)):
            stale[cache] = changed
    return stale, unknown
