"""What is pinned of the catalogue, as sorted lines; run as a program, it writes them anew.

    .venv/bin/python tests/catalogue/pinned_catalogue.py

Names and members were compared once with those that the original's own module registers, and the
rates with its `get_rate`, over the recorded split sizes. It has no rate for a rank-evaluation task
whose dataset has no train split (crows_pairs, axg, story_cloze): ours counts the first split.
"""

from pathlib import Path

PINNED = Path(__file__).parent / "pinned"
TASKS = PINNED / "tasks.txt"
MIXTURES = PINNED / "mixtures.csv"


def task_lines():
    """Returns the names of all tasks."""
    import seqio

    return sorted(seqio.TaskRegistry.names())


def mixture_lines():
    """Returns `mixture,task,rate` for each member of each mixture."""
    import seqio

    lines = ["mixture,task,rate"]
    for name in sorted(seqio.MixtureRegistry.names()):
        mixture = seqio.MixtureRegistry.get(name)
        for task in sorted(mixture.tasks, key=lambda task: task.name):
            lines.append(f"{name},{task.name},{mixture.get_rate(task):.10g}")
    return lines


def text(lines):
    """Returns a file's content."""
    return "".join(f"{line}\n" for line in lines)


def main():
    """Writes the files."""
    from t0 import compat

    compat.apply("seqio")
    import seqio
    import t5.data  # noqa: F401 (registers T5's own)

    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
        registry._REGISTRY.clear()
    import t0.seqio_tasks  # noqa: F401

    TASKS.write_text(text(task_lines()), encoding="utf-8")
    MIXTURES.write_text(text(mixture_lines()), encoding="utf-8")


if __name__ == "__main__":
    main()
