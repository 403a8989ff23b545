"""A limit on the memory that many owners hold together, fair to the small ones.

An owner is whatever a client can make larger: a group, later a transactional id or a share group. Each says how large
it is; nothing is measured here. An owner may grow as long as it is then no larger than what is left of the limit. So a
large owner is refused first, and there is always something left for small ones: whoever wants to use up the last
hundredth of the limit must not itself be larger than that. (Switches share their packet buffers by the same rule.)

What exists is never taken away. Owners that were loaded from a log count, even beyond the limit; then nobody grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class MemoryBudget:
    """The bytes that all owners hold, and the limit on them."""

    def __init__(self, limit_bytes: int, on_refused: Callable[[], None] = lambda: None) -> None:
        """`on_refused` is called each time an owner is refused."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.refused_count = 0
        self._on_refused = on_refused

    @property
    def left_bytes(self) -> int:
        """Return what is left of the limit; negative if more was loaded than the limit allows."""
        return self.limit_bytes - self.used_bytes

    def has_plenty(self, owner_bytes: int, growth_bytes: int) -> bool:
        """Return whether an owner would still be no larger than what is left; refusals are not counted."""
        return owner_bytes + 2 * growth_bytes <= self.left_bytes

    def has_room(self, owner_bytes: int, growth_bytes: int) -> bool:
        """Return whether an owner that holds `owner_bytes` may hold `growth_bytes` more. Counts refusals."""
        if growth_bytes <= 0 or self.has_plenty(owner_bytes, growth_bytes):
            return True
        self.refused_count += 1
        self._on_refused()
        return False


class MemoryAccount:
    """The owners of one part of the broker that can be thrown away as a whole, such as a coordinator's shard."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._sizes: dict[Hashable, int] = {}

    def size_of(self, owner: Hashable) -> int:
        return self._sizes.get(owner, 0)

    def has_plenty(self, owner: Hashable, growth_bytes: int) -> bool:
        """Return whether so much more of the owner is certainly no problem; refusals are not counted."""
        return self._budget.has_plenty(self._sizes.get(owner, 0), growth_bytes)

    def may_grow(self, owner: Hashable, growth_bytes: int) -> bool:
        """Return whether the owner may hold `growth_bytes` more."""
        return self._budget.has_room(self._sizes.get(owner, 0), growth_bytes)

    def set_size(self, owner: Hashable, size_bytes: int) -> None:
        """Note what the owner holds now; an owner that holds nothing is forgotten."""
        self._budget.used_bytes += size_bytes - self._sizes.get(owner, 0)
        if size_bytes:
            self._sizes[owner] = size_bytes
        else:
            self._sizes.pop(owner, None)

    def close(self) -> None:
        """Give everything back: the owners are gone."""
        self._budget.used_bytes -= sum(self._sizes.values())
        self._sizes.clear()
