"""Runs tests with one mutant after the other in forks of a process that has collected all tests: a pytest plugin.

Importing and collecting takes far longer than the few tests that notice a mutant. So a fork replaces the code of the
functions that the mutant changes, and runs the tests that it is given. The changed file is on the disk too, for
modules that are imported later and for processes that tests start. What the tests do is noted by `verdict.py`.

FLOWSTONE_FORKS names two descriptors. Requests come from the first, one a line. The first answer on the second is the
list of tests; then each `Request` is answered with an `Answer`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypedDict

import pytest

CHILD_POLL_S = 0.005


class Answer(StrEnum):
    """How a fork ended. What its tests did is in the notes."""

    ENDED = "ended"
    KILLED = "killed"  # by its time limit or a signal
    UNCHANGED = "unchanged"  # the code of a function that is in use cannot be replaced: no test was run


class Request(TypedDict):
    file: str  # the changed file; empty for none
    source: str  # its text without the mutant
    tests: Sequence[str]
    seconds: float  # the time limit of all tests


class _Functions:
    """All functions of the sources that exist, by the file and the line of their code."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[tuple[str, int], list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                self._functions[code.co_filename][code.co_qualname, code.co_firstlineno].append(each)

    def replace(self, file: str, before: str, after: str) -> bool:
        """Give the functions of a file their changed code; return whether all took it."""
        functions = self._functions.get(file, {})
        old_module = compile(before, file, "exec", dont_inherit=True)
        new_module = compile(after, file, "exec", dont_inherit=True)
        for old, new in _changed_functions(old_module, new_module):
            for function in functions.get((old.co_qualname, old.co_firstlineno), ()):
                try:
                    function.__code__ = new
                except ValueError:  # it uses other variables of the scope around it
                    return False
        return True


def _changed_functions(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the old and the new code of changed functions, also of those inside of others: decorators make some."""
    old_codes, new_codes = _codes_inside(before), _codes_inside(after)
    if len(old_codes) != len(new_codes):  # the change has removed one
        return
    for old, new in zip(old_codes, new_codes, strict=True):
        if old == new:
            continue
        if old.co_flags & 0x2:  # CO_NEWLOCALS: a function, not the body of a class
            yield old, new
        yield from _changed_functions(old, new)


def _codes_inside(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run what is asked for instead of all tests."""
    items = {item.nodeid: item for item in session.items}
    functions = _Functions()
    gc.freeze()
    assert threading.active_count() == 1, f"a fork must not happen beside threads: {threading.enumerate()}"
    incoming, outgoing = map(int, os.environ["FLOWSTONE_FORKS"].split())
    with os.fdopen(incoming) as requests, os.fdopen(outgoing, "w") as answers:
        print(json.dumps(sorted(items)), file=answers, flush=True)
        for line in requests:
            print(json.dumps(_answer(functions, items, json.loads(line))), file=answers, flush=True)
    return True


def _answer(functions: _Functions, items: Mapping[str, pytest.Item], request: Request) -> Answer:
    child = os.fork()
    if not child:
        _run(functions, [items[test] for test in request["tests"]], request)
    deadline = time.monotonic() + request["seconds"]
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid or time.monotonic() > deadline:
            break
        time.sleep(CHILD_POLL_S)
    _end_group(child)
    if not pid:
        os.waitpid(child, 0)
        return Answer.KILLED
    if os.WIFSIGNALED(status):
        return Answer.KILLED
    return Answer.UNCHANGED if os.WEXITSTATUS(status) == 3 else Answer.ENDED


def _run(functions: _Functions, chosen: Sequence[pytest.Item], request: Request) -> None:
    """Run tests until one fails, in a fork. Ends the process."""
    os.setsid()
    seconds, file = int(request["seconds"]), request["file"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    try:
        if file and not functions.replace(file, request["source"], Path(file).read_text()):
            os._exit(3)
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                break
    finally:
        os._exit(0)


def _end_group(leader_pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has no processes left
        os.killpg(leader_pid, signal.SIGKILL)
