"""Makes mutants: copies of a source file in which one small part of a line is another.

for mutant in mutants_of("t0/errors.py", source):
    mutant.line, mutant.before, mutant.after      # 3, "a < b", "a >= b"
    mutant.applied(source)
"""

import ast
import dataclasses
from collections.abc import Iterator

_COMPARISONS = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "*"}

_LOOSE = (ast.NamedExpr, ast.BoolOp, ast.IfExp, ast.Lambda)  # which had parentheses, or get them


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of a part of one line.

    Attributes:
      path: the file, relative to the root.
      line: the line's number, from 1.
      start, end: the columns of the part, in bytes of UTF-8.
      before: the part.
      after: what replaces it.
      text: the whole line, by which the mutant is found again in a later version of the file.
    """

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    text: str

    def line_in(self, source: str) -> int:
        """Returns the number of the line in a version of the file.

        Raises:
          ValueError: the source does not have the line any more.
        """
        numbers = [n for n, line in enumerate(source.splitlines(), 1) if line == self.text]
        if not numbers:
            raise ValueError(f"{self.path} has no line {self.text.strip()!r} any more")
        return min(numbers, key=lambda n: abs(n - self.line))

    def applied(self, source: str) -> str:
        """Returns the source with the change.

        Raises:
          ValueError: the source does not have the line any more.
        """
        lines = source.splitlines(keepends=True)
        number = self.line_in(source)
        whole = lines[number - 1].encode()
        lines[number - 1] = (whole[: self.start] + self.after.encode() + whole[self.end :]).decode()
        return "".join(lines)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yields the mutants of a file's functions, which all can be parsed."""
    lines, tree = source.splitlines(), ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    statements = [statement for function in functions for statement in function.body]
    nodes = dict.fromkeys(node for statement in statements for node in ast.walk(statement))
    formatted = {
        part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
    }
    for node in nodes:  # those of a function within a function once
        if node in formatted:  # before Python 3.12, they have other columns
            continue
        after = _replacement(node, source)
        if after is None or node.lineno != node.end_lineno:
            continue
        before = ast.get_source_segment(source, node)
        columns = (node.col_offset, node.end_col_offset)
        yield Mutant(path, node.lineno, *columns, before, after, lines[node.lineno - 1])


def _replacement(node: ast.AST, source: str) -> str | None:
    """Returns the text that replaces an expression or statement, or None."""

    def text(part: ast.AST) -> str:
        segment = ast.get_source_segment(source, part) or ""
        return f"({segment})" if isinstance(part, _LOOSE) else segment

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return f"{text(left)} {_COMPARISONS[type(operator)]} {text(right)}"
        case ast.BoolOp(op=operator, values=[first, *others]):
            word = " or " if isinstance(operator, ast.And) else " and "
            return word.join(map(text, [first, *others]))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return text(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if any(
                isinstance(x, ast.Constant | ast.JoinedStr)
                and not isinstance(getattr(x, "value", ""), int)
                for x in (left, right)
            ):
                return None  # of texts
            return f"{text(left)} {_ARITHMETIC[type(operator)]} {text(right)}"
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int(value)):
            return str(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return "return None"
        case ast.Expr(value=ast.Call()):
            return "pass"
    return None
