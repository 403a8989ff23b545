"""Prints docstrings chosen at random from `src`, each with its signature, so that a stranger can judge them.

    python scripts/sample_docstrings.py [--seed N] [--count N] [PATH...]

The same seed, paths and sources give the same sample. PATH is a file or a directory; the default is `src`. A docstring
is good if a reader who has not seen the code understands its first sentence without the body.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the signature and the docstring of the module at `path`, and of everything documented in it."""
    name = path.name
    if path.is_relative_to(ROOT):
        name = str(path.relative_to(ROOT))
    for qualified_name, node in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node)
        if text:
            yield f"{name}: {_signature(qualified_name, node)}", text


def sample(paths: list[Path], count: int, seed: int) -> list[tuple[str, str]]:
    """Return `count` signatures with docstrings from the Python files in `paths`, all of them if there are fewer."""
    files = sorted({file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))})
    found = [each for file in files if file.name != "generated.py" for each in documented(file)]
    return random.Random(seed).sample(found, min(count, len(found)))


def _definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Documented]]:
    if isinstance(tree, ast.Module):
        yield "", tree
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")
        else:
            yield from _definitions(node, prefix)


def _signature(qualified_name: str, node: Documented) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return f"class {qualified_name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{qualified_name}({ast.unparse(node.args)}){returns}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print a random sample of docstrings with their signatures.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "src"])
    arguments = parser.parse_args()
    for number, (signature, text) in enumerate(
        sample([path.resolve() for path in arguments.paths], arguments.count, arguments.seed), start=1
    ):
        print(f"{number}. {signature}")
        print("\n".join(f"    {line}".rstrip() for line in text.splitlines()))


if __name__ == "__main__":
    main()
