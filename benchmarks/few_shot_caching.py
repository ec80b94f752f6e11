"""Compares the processor time per token of caching 4-shot and zero-shot RTE.

    .venv/bin/python benchmarks/few_shot_caching.py --data_dir=DIR --vocab=spiece.model --rounds=3

Both programs cache the ten RTE prompts, each as a plain and as a rank-evaluation task, with the
splits train and validation and one process. They take turns. A token is a token of the inputs or
targets that is written to a cache. The program also prints the mean number of tokens of an example,
which is that of an input with four exemplars if all four are kept.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.caching import add_data_flags, median, run

MIXTURE = "few: {tasks: [sciq_Multiple_Choice], few_shot: {of: ['super_glue_rte_.*'], k: 4%s}}\n"
TASKS = {
    "zero-shot": "(?!.*_4shot)super_glue_rte_.*",
    "4-shot": "super_glue_rte_.*_4shot(_score_eval)?",
}
AIM = 1.3


def main():
    """Runs both programs in turns, and prints their times per token."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_flags(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--options", default="", help="more keys of few_shot, such as 'budget: 1920'"
    )
    args = parser.parse_args()
    runs = {name: [] for name in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        (data / "super_glue").symlink_to(Path(args.data_dir, "super_glue").resolve())
        more = f", {args.options}" if args.options else ""
        (data / "mixtures.yaml").write_text(MIXTURE % more, encoding="utf-8")
        for turn in range(args.rounds):
            for name, tasks in TASKS.items():
                out = Path(folder, f"{name}{turn}")
                words = ["--workers", "0", "--role", "ours", "--out", out, "--tasks", tasks]
                words += ["--data_dir", data, "--vocab", args.vocab]
                result = run(["benchmarks/caching.py"], *words)
                stats = [json.loads(path.read_text()) for path in out.glob("*/stats.*.json")]
                tokens = sum(each["inputs_tokens"] + each["targets_tokens"] for each in stats)
                runs[name].append({**result, "tokens": tokens})
    print(
        "| prompts | records | tokens per record | processor s | ns per token |\n|---|---|---|---|---|"
    )
    costs = {}
    for name, of_name in runs.items():
        tokens, records = of_name[0]["tokens"], of_name[0]["records"]
        seconds = median(of_name, "processor")
        costs[name] = seconds / tokens
        each = f"{tokens / records:.1f} | {seconds:.2f} | {costs[name] * 1e9:.0f}"
        print(f"| {name} | {records:,} | {each} |")
    print(f"\n4-shot / zero-shot: {costs['4-shot'] / costs['zero-shot']:.2f} (aim: at most {AIM})")


if __name__ == "__main__":
    main()
