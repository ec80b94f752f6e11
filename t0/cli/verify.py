"""`t0 verify CACHE_DIR`: checks a cache's files again, and names the damaged ones.

t0 verify /data/cache                       # all tasks below the directory
t0 verify /data/cache/super_glue_rte_should_assume --json
"""

import argparse
import json
import sys

from t0.caching.verify import find_caches, has_checksums, verify_cache
from t0.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("cache_dir", nargs="+", help="a task's cache, or a folder with several")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def main(args: argparse.Namespace) -> int:
    """Prints the damaged caches; returns 1 if there are any, else 0."""
    caches = [cache for directory in args.cache_dir for cache in find_caches(directory)]
    faults: dict[str, list[str]] = {}
    for number, cache in enumerate(caches, start=1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K{number}/{len(caches)} {cache}", end="", file=sys.stderr, flush=True)
        found = list(verify_cache(cache))
        if found:
            faults[cache] = found
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    bare = [cache for cache in caches if cache not in faults and not has_checksums(cache)]
    if args.json:
        shown = {"caches": len(caches), "faults": faults, "without_checksums": bare}
        json.dump(shown, sys.stdout, indent=1)
        print()
    else:
        for found in faults.values():
            print(printable("\n".join(found)))
        for cache in bare:
            print(f"{printable(cache)}: complete, without checksums")
        sound = len(caches) - len(faults)
        summary = f"{sound} of {len(caches)} caches are whole"
        if bare:
            summary += (
                f", {len(bare)} of them without checksums, as SeqIO writes them: of these only the "
                "records' own checksums and their number were compared. If seqio_cache_tasks of t0 "
                "wrote one of them, its COMPLETED was emptied."
            )
        print(summary, file=sys.stderr)
    return 1 if faults else 0
