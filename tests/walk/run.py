"""Print the functions that run on five paths through the code: `python -m tests.walk.run`, or `make walk`.

For each path: how many functions in how many files, then the functions by file in the order in which they are reached.
`--summary` prints the table of counts alone.
"""

from __future__ import annotations

import argparse

from tests.walk.paths import PATHS
from tests.walk.recorder import Walk, line_count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.walk.run", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"of {', '.join(path.__name__ for path in PATHS)}")
    parser.add_argument("--summary", action="store_true", help="print the counts alone")
    chosen = parser.parse_args()
    walks = [path() for path in PATHS if not chosen.paths or path.__name__ in chosen.paths]
    if not chosen.summary:
        for walk in walks:
            print_walk(walk)
    print("\n| path | functions | files | longest function, lines | mean |\n|---|---:|---:|---:|---:|")
    for walk in walks:
        lines = [line_count(code) for code in walk.functions]
        print(
            f"| {walk.name} | {len(lines)} | {len(walk.files)} | {max(lines)} (`{walk.longest.co_qualname}`) "
            f"| {sum(lines) / len(lines):.1f} |"
        )


def print_walk(walk: Walk) -> None:
    print(f"\n{walk.name}: {len(walk.functions)} functions in {len(walk.files)} files")
    for file, functions in walk.files.items():
        print(f"  {file}")
        for code in functions:
            print(f"    {code.co_firstlineno:4} {code.co_qualname}, {line_count(code)} lines")


if __name__ == "__main__":
    main()
