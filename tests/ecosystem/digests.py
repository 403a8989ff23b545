"""The digest of a case's code, which tells whether a result is still that of the case as it is.

The code is the case's function, all that it names in the modules of `cases`, and the programs that it runs. Comments
and docstrings do not count, nor do the modules that all cases share (`product`, `installs`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

from tests.ecosystem.installs import PROGRAMS
from tests.ecosystem.product import Product

CASES = "tests.ecosystem.cases."
DIGEST_CHARACTERS = 16
_COMMENT = re.compile(r"(?m)(^|\s)(#|//) .*$")

Names = dict[str, tuple[str, ast.stmt]]  # the module's name and the statement that defines it


def digest(product: Product) -> str:
    """Return the digest of a product's case."""
    function, given = product.run, ""
    if isinstance(function, partial):
        function, given = function.func, repr(sorted(function.keywords.items()))
    found = hashlib.sha256(given.encode())
    for text in _code(function.__module__, function.__name__):
        found.update(_COMMENT.sub("", text).encode())
    return found.hexdigest()[:DIGEST_CHARACTERS]


@functools.cache
def _code(module: str, name: str) -> list[str]:
    """Return the code of a definition and of all that it uses, in a fixed order."""
    return [text for _, text in sorted(_reached(module, name).items())]


def _reached(module: str, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    waiting = [(module, name)]
    while waiting:
        where, what = waiting.pop()
        key = f"{where}.{what}"
        definition = _definitions(where).get(what)
        if definition is None or key in found:
            continue
        home, statement = definition
        if home != where:  # imported from another case's module
            waiting.append((home, what))
            continue
        found[key] = _source(where, statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                waiting.append((where, node.id))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= dict(_program(node.value))
    return found


def _program(text: str) -> Iterator[tuple[str, str]]:
    """Yield the program with this name, if there is one."""
    if re.fullmatch(r"\w+\.\w+", text) and (PROGRAMS / text).is_file():
        yield f"program {text}", (PROGRAMS / text).read_text()


@lru_cache
def _definitions(module: str) -> Names:
    """Return what a module defines at its top level or imports from another module of cases, by name."""
    found: Names = {}
    for statement in ast.parse(_path(module).read_text()).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = (module, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            found |= dict.fromkeys(names, (module, statement))
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(CASES):
            found |= {each.name: (str(statement.module), statement) for each in statement.names}
    return found


def _source(module: str, statement: ast.stmt) -> str:
    """Return the lines of a statement without its docstrings."""
    lines = _path(module).read_text().splitlines()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                lines[number] = ""
    return "\n".join(lines[statement.lineno - 1 : statement.end_lineno])


def _path(module: str) -> Path:
    specification = importlib.util.find_spec(module)
    assert specification is not None, module
    assert specification.origin is not None, module
    return Path(specification.origin)
