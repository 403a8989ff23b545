"""Turns and warm-up, with rounds whose figures are given."""

from __future__ import annotations

from collections.abc import Iterator

from bench.load import Figures
from bench.modes import NOT_FLUSHED
from bench.rounds import WARM_UP_ROUNDS_MAX, Turns
from bench.servers import Flowstone, Server
from bench.topics import RoundFailed
from bench.workloads import Workload


class Standing(Flowstone):
    """A server in name only, which is always found running."""

    def check_running(self) -> None:
        pass


def turns(results: Iterator[float | RoundFailed], order: list[Server]) -> tuple[Turns, list[str]]:
    def run(server: Server) -> Figures:
        order.append(server)
        result = next(results)
        if isinstance(result, RoundFailed):
            raise result
        return {"rate": result}

    failures: list[str] = []
    workload = Workload("work", "variant", NOT_FLUSHED, "rate", run)
    return Turns(workload, {"a": Standing(), "b": Standing()}, failures), failures


def test_warm_up_ends_when_two_rounds_of_each_agree() -> None:
    order: list[Server] = []
    these, _ = turns(iter([10.0, 10.0] * 3), order)
    case = these.measure(rounds=1)
    assert len(order) == 6  # two of warm-up and one that counts, for each
    assert case.unsettled == []


def test_warm_up_that_never_agrees_ends_and_is_told() -> None:
    order: list[Server] = []
    rising = (2.0**power if power % 2 else 1.0 for power in range(2 * WARM_UP_ROUNDS_MAX + 2))
    these, _ = turns(rising, order)
    assert these.measure(rounds=1).unsettled != []
    assert len(order) == 2 * WARM_UP_ROUNDS_MAX + 2


def test_who_goes_first_changes_with_each_round() -> None:
    order: list[Server] = []
    these, _ = turns(iter([10.0] * 6), order)
    these.measure(rounds=1)
    a, b = order[0], order[1]
    assert order == [a, b, b, a, a, b]


def test_a_round_with_an_error_does_not_count() -> None:
    order: list[Server] = []
    these, failures = turns(iter([10.0, 10.0, 10.0, 10.0, RoundFailed("error code 7"), 10.0]), order)
    case = these.measure(rounds=1)
    assert [len(rounds) for rounds in case.rounds.values()] == [0, 1]
    assert failures == ["work, not flushed: variant: a round (counts) of a does not count: error code 7"]
