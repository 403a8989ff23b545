"""One limit on many owners: who may grow, and what is given back."""

from __future__ import annotations

import random

import pytest

from flowstone.memory_budget import MemoryAccount, MemoryBudget


def grow(account: MemoryAccount, owner: str, growth_bytes: int) -> bool:
    if not account.may_grow(owner, growth_bytes):
        return False
    account.set_size(owner, account.size_of(owner) + growth_bytes)
    return True


def test_one_owner_alone_gets_no_more_than_half() -> None:
    budget = MemoryBudget(1_000)
    account = MemoryAccount(budget)
    assert grow(account, "a", 500)
    assert not grow(account, "a", 1)
    assert budget.used_bytes == 500


def test_a_large_owner_is_refused_while_a_small_one_still_grows() -> None:
    budget = MemoryBudget(1_000)
    account = MemoryAccount(budget)
    assert grow(account, "large", 400)
    assert grow(account, "other", 300)
    assert not grow(account, "large", 10)
    assert grow(account, "small", 100)
    assert grow(account, "small", 10)


def test_greedy_owners_end_with_equal_shares_and_leave_a_share_to_others() -> None:
    budget = MemoryBudget(11_000)
    account = MemoryAccount(budget)
    for _ in range(1_000):
        for number in range(10):
            grow(account, f"owner-{number}", 10)
    assert {account.size_of(f"owner-{number}") for number in range(10)} == {1_000}
    assert budget.left_bytes == 1_000


def test_the_limit_holds_whatever_owners_do() -> None:
    rng = random.Random(1)
    budget = MemoryBudget(10_000)
    accounts = [MemoryAccount(budget) for _ in range(3)]
    model: dict[tuple[int, int], int] = {}
    for _ in range(20_000):
        which, owner = rng.randrange(3), rng.randrange(50)
        if rng.random() < 0.7:
            growth = rng.choice((1, 10, 100, 1_000))
            if grow(accounts[which], str(owner), growth):
                model[which, owner] = model.get((which, owner), 0) + growth
        elif rng.random() < 0.99:
            accounts[which].set_size(str(owner), 0)
            model.pop((which, owner), None)
        else:
            accounts[which].close()
            model = {key: size for key, size in model.items() if key[0] != which}
        assert budget.used_bytes == sum(model.values()) <= budget.limit_bytes


@pytest.mark.parametrize("growth", [0, -5])
def test_who_does_not_grow_is_never_refused_even_beyond_the_limit(growth: int) -> None:
    budget = MemoryBudget(100)
    account = MemoryAccount(budget)
    account.set_size("loaded", 200)
    assert account.may_grow("loaded", growth)
    assert not account.may_grow("new", 1)
    assert budget.left_bytes == -100


def test_refusals_are_counted_and_told() -> None:
    told: list[int] = []
    budget = MemoryBudget(10, lambda refusing: told.append(refusing.refused_count))
    account = MemoryAccount(budget)
    assert not account.may_grow("a", 6)
    assert not account.could_grow("a", 6)
    assert (told, budget.refused_count) == ([1], 1)


def test_a_closed_account_gives_everything_back() -> None:
    budget = MemoryBudget(100)
    closing, staying = MemoryAccount(budget), MemoryAccount(budget)
    closing.set_size("a", 30)
    staying.set_size("a", 20)
    closing.close()
    assert budget.used_bytes == 20
    assert closing.size_of("a") == 0
