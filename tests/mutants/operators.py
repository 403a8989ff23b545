"""Small changes to Python source that a good test suite notices: what can be changed, and the changed text.

Only bodies of functions are changed, since a test can only notice lines that run during it. Messages (logging, the text
of exceptions), assertions (`strict=True` of `zip` too) and annotations are left out: whether they are right is no
test's business.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLED_INSTEAD = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNTESTED_FUNCTIONS = {"__repr__", "__str__"}
SHOWN_CHARACTERS = 100
UNCLEAR_CHARACTERS = 12  # what is shorter is shown together with its statement


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` of the file are replaced by `text`."""

    file: str
    function: str
    line: int
    statement_line: int  # where the innermost statement begins that holds the change
    function_line: int
    start: int
    end: int
    text: str
    change: str  # both forms, for people; with file and function it also names the mutant when lines move

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.change}"


def find_mutants(file: str, source: bytes) -> list[Mutant]:
    """Return every change that the operators can make to one file, in the order of the source."""
    return list(_Finder(file, source).functions(ast.parse(source), ""))


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._statement_line = self._function_line = 0
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    def functions(self, node: ast.AST, scope: str) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if child.name not in UNTESTED_FUNCTIONS:
                    yield from self._body(child, f"{scope}{child.name}")
            elif isinstance(child, ast.ClassDef):
                yield from self.functions(child, f"{scope}{child.name}.")
            else:
                yield from self.functions(child, scope)

    def _body(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Mutant]:
        outer, self._function_line = self._function_line, function.lineno
        for statement in function.body:
            yield from self._changes(statement, name)
        self._function_line = outer

    def _changes(self, node: ast.AST, name: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._body(node, f"{name}.{node.name}")
            return
        if _is_no_tests_business(node):
            return
        if isinstance(node, ast.stmt):
            self._statement_line = node.lineno
            yield from self._statement_changes(node, name)
        else:
            yield from (self._mutant(node, changed, name) for changed in _expression_changes(node))
        for field, child in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(node, ast.Raise) and isinstance(child, ast.Call):
                continue  # its message
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    yield from self._changes(each, name)

    def _statement_changes(self, node: ast.stmt, name: str) -> Iterator[Mutant]:
        match node:
            case ast.If(test=test) | ast.While(test=test):
                if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant) or len(getattr(test, "ops", "1")) > 1:
                    yield self._mutant(test, ast.UnaryOp(ast.Not(), test), name)
            case ast.Return(value=value) if value is not None and not _is_none_or_false(value):
                yield self._mutant(node, ast.Return(ast.Constant(None)), name)
            case ast.AugAssign(op=op):
                yield self._mutant(node, None, name)
                if other := ARITHMETIC.get(type(op)):
                    yield self._mutant(node, ast.AugAssign(node.target, other(), node.value), name)
            case ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
                yield self._mutant(node, None, name)
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._mutant(node, None, name)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                if not name.endswith("__init__"):
                    yield self._mutant(node, None, name)

    def _mutant(self, node: ast.stmt | ast.expr, changed: ast.AST | None, name: str) -> Mutant:
        """With `changed` None the statement is removed."""
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old = " ".join(self._source[start:end].decode().split())
        text = "pass" if changed is None else ast.unparse(changed)
        if isinstance(changed, ast.expr):
            text = f"({text})"
        shown = (
            f"removed `{_short(old)}`" if changed is None else f"`{_short(old)}` -> `{_short(ast.unparse(changed))}`"
        )
        if len(old) < UNCLEAR_CHARACTERS:
            statement = self._source.splitlines()[self._statement_line - 1].decode().strip()
            shown += f" in `{_short(statement)}`"
        lines = node.lineno, self._statement_line, self._function_line
        return Mutant(self._file, name, *lines, start, end, text, shown)


def _expression_changes(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=comparators) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], comparators)
        case ast.Compare(left=left, ops=[first, second], comparators=comparators):
            yield ast.Compare(left, [COMPARISONS[type(first)](), second], comparators)
            yield ast.Compare(left, [first, COMPARISONS[type(second)]()], comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _is_text(left):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Call(func=ast.Name(id=called), args=args, keywords=keywords) if called in CALLED_INSTEAD:
            yield ast.Call(ast.Name(CALLED_INSTEAD[called]), args, keywords)


def _is_no_tests_business(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.keyword(arg="strict"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "warnings")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _is_none_or_false(value: ast.expr) -> bool:
    """Return whether None in place of the value is the same to callers that only ask whether it is true."""
    return isinstance(value, ast.Constant) and (value.value is None or value.value is False)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
