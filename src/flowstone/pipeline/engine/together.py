"""Spark jobs at the same time: while Spark plans one, and in the last tasks of one, another one has the cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def run_together(functions: Sequence[Callable[[], object]]) -> None:
    """Run functions in threads of their own, with Spark's properties of this one, and return when all have ended.

    Raises the error of the first that failed.
    """
    from pyspark.util import InheritableThread

    errors: list[BaseException | None] = [None] * len(functions)

    def run(index: int) -> None:
        try:
            functions[index]()
        except BaseException as error:
            errors[index] = error

    threads = [InheritableThread(target=run, args=(index,)) for index in range(1, len(functions))]
    for each in threads:
        each.start()
    if functions:
        run(0)
    for each in threads:
        each.join()
    for error in errors:
        if error is not None:
            raise error
