"""Builds the warning about truncated inputs or targets of a task.

    if share > LOUD:
        print(cut_warning("reviews_which", "inputs", share, 512))

Scoring and training use this warning, each with its own length limits.
"""

# The truncated share of inputs or targets above which users are warned.
LOUD = 0.01


def cut_warning(name: str, feature: str, share: float, most: int) -> str:
    """Returns the warning that a share of inputs or targets is truncated to `most` tokens."""
    lost = "the end, where the question mostly stands" if feature == "inputs" else "their ends"
    return (
        f"WARNING: {name}: {share:.1%} of {feature} are longer than {most:,} tokens and lose "
        f"{lost}. Raise '{feature}' of TASK_FEATURE_LENGTHS or run.sequence_length (t0 eval: "
        f"--lengths)"
    )
