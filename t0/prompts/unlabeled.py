"""Finds the part of a template before the separator, which a row without a label can print.

"".join(until_separator(iter(["Is it wet?", " ||| ", "yes"])))        # "Is it wet? |||"
remove_targets(tree.body)       # the parsed template then only reads the columns of its inputs
"""

from collections.abc import Iterator

from jinja2 import nodes

SEPARATOR = "|||"


def until_separator(pieces: Iterator[str]) -> Iterator[str]:
    """Yields a template's printed pieces up to the first separator.

    Jinja computes the pieces one by one. So the target, which needs the label, is not computed.
    """
    for piece in pieces:
        inputs, separator, _ = piece.partition(SEPARATOR)
        yield inputs + separator
        if separator:
            return


def remove_targets(body: list[nodes.Node]) -> bool:
    """Removes the nodes after the first separator; returns whether a separator was found."""
    for position, node in enumerate(body):
        if isinstance(node, nodes.Output):
            inner = node.nodes
            first = next((n for n, each in enumerate(inner) if _prints_separator(each)), None)
            del inner[len(inner) if first is None else first :]
            ends = first is not None
        else:
            branches = [getattr(node, name, None) or [] for name in ("body", "else_")]
            branches += [branch.body for branch in getattr(node, "elif_", None) or []]
            ends = sum(map(remove_targets, branches)) > 0  # unlike `any`, visits all branches
        if ends:
            del body[position + 1 :]
            return True
    return False


def _prints_separator(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and SEPARATOR in node.data
