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
    """Removes the nodes after separators; returns whether there is a separator."""
    last = None
    for position, node in enumerate(body):
        if isinstance(node, nodes.Output):
            pieces = node.nodes
            first = next((n for n, each in enumerate(pieces) if _prints_separator(each)), None)
            if first is not None:
                del pieces[first:], body[position + 1 :]
                return True
            continue
        branches = [getattr(node, name, None) or [] for name in ("body", "else_")]
        branches += [branch.body for branch in getattr(node, "elif_", None) or []]
        if sum(map(remove_targets, branches)):  # `any` would not visit all branches
            last = position  # a later node may print inputs of rows that skip this node
    if last is not None:
        del body[last + 1 :]
    return last is not None


def _prints_separator(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and SEPARATOR in node.data
