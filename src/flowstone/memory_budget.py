"""A memory limit shared by many owners, which favours small ones.

An owner is anything that a client can enlarge: a group, later a transactional id or a share group. Owners report their
sizes; this module measures nothing. An owner may grow only up to the size of the remaining memory. A large owner is
therefore refused first, and some memory always remains for small ones: only an owner smaller than the last hundredth of
the limit can use it. (Network switches share their packet buffers by the same rule.)

Existing memory is never taken away. Owners that are loaded from a log count even beyond the limit; then no owner may
grow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class MemoryBudget:
    """The memory limit and the total bytes of all owners."""

    def __init__(self, limit_bytes: int, on_refused: Callable[[MemoryBudget], None] = lambda budget: None) -> None:
        """Create a budget without owners; `on_refused` is called with it each time an owner is refused."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.refused_count = 0
        self._on_refused = on_refused

    @property
    def left_bytes(self) -> int:
        """Return the remaining bytes; negative if more was loaded than the limit permits."""
        return self.limit_bytes - self.used_bytes

    def could_grow(self, owner_bytes: int, growth_bytes: int) -> bool:
        """Return whether an owner could grow by that much, without counting a refusal."""
        return owner_bytes + 2 * growth_bytes <= self.left_bytes

    def may_grow(self, owner_bytes: int, growth_bytes: int) -> bool:
        """Return whether an owner of `owner_bytes` may grow by `growth_bytes`, and count a refusal."""
        if growth_bytes <= 0 or self.could_grow(owner_bytes, growth_bytes):
            return True
        self.refused_count += 1
        self._on_refused(self)
        return False


class MemoryAccount:
    """The owners of one part of the broker, such as a coordinator's shard, which is released as a whole."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._sizes: dict[Hashable, int] = {}

    def size_of(self, owner: Hashable) -> int:
        return self._sizes.get(owner, 0)

    def could_grow(self, owner: Hashable, growth_bytes: int) -> bool:
        """Return whether the owner could grow by that much, without counting a refusal."""
        return self._budget.could_grow(self._sizes.get(owner, 0), growth_bytes)

    def may_grow(self, owner: Hashable, growth_bytes: int) -> bool:
        """Return whether the owner may grow by `growth_bytes`, and count a refusal."""
        return self._budget.may_grow(self._sizes.get(owner, 0), growth_bytes)

    def set_size(self, owner: Hashable, size_bytes: int) -> None:
        """Set the owner's current size; an owner of size 0 is removed."""
        self._budget.used_bytes += size_bytes - self._sizes.get(owner, 0)
        if size_bytes:
            self._sizes[owner] = size_bytes
        else:
            self._sizes.pop(owner, None)

    def close(self) -> None:
        """Release the memory of all owners of the account."""
        self._budget.used_bytes -= sum(self._sizes.values())
        self._sizes.clear()
