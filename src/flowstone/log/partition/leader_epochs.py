"""The start offset of each leader epoch: Kafka's leader-epoch-checkpoint, and lookups in it.

Pure. The entries are derivable from the log, whose batches carry their leader epoch.
Invariant: epochs and start offsets both rise.
"""

from __future__ import annotations

from bisect import bisect_right

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_VERSION = "0"


class LeaderEpochs:
    __slots__ = ("_epochs", "_start_offsets", "latest")

    def __init__(self) -> None:
        self.latest = UNDEFINED_EPOCH  # a field because every batch needs it
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries() == other.entries()

    __hash__ = None  # type: ignore[assignment]

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._start_offsets, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that a batch of this epoch starts at this offset; return whether the epoch is new."""
        if epoch <= self.latest:  # never below UNDEFINED_EPOCH, so that no negative epoch is new
            return False
        # An epoch without a record left no trace: the new one begins where that one would have.
        while self._start_offsets and self._start_offsets[-1] >= start_offset:
            self._epochs.pop()
            self._start_offsets.pop()
        self._epochs.append(epoch)
        self._start_offsets.append(start_offset)
        self.latest = epoch
        return True

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which the record at `offset` was, or will be, written; -1 if none is known that early."""
        at = bisect_right(self._start_offsets, offset)
        return self._epochs[at - 1] if at else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and the offset where it ended, or (-1, -1)."""
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return epoch, self._start_offsets[0]
        return self._epochs[at - 1], self._start_offsets[at]

    def truncate_end(self, end_offset: int) -> bool:
        """Drop the epochs that began at `end_offset` or later; return whether there were any."""
        before = len(self._epochs)
        while self._start_offsets and self._start_offsets[-1] >= end_offset:
            self._epochs.pop()
            self._start_offsets.pop()
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        return len(self._epochs) < before

    def truncate_start(self, start_offset: int) -> bool:
        """Drop the epochs before the log's new start, and let the one that contains it begin there.

        Returns whether that changes anything.
        """
        at = bisect_right(self._start_offsets, start_offset) - 1
        if at < 0 or self._start_offsets[at] == start_offset == self._start_offsets[0]:
            return False
        del self._epochs[:at], self._start_offsets[:at]
        self._start_offsets[0] = start_offset
        return True

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self._epochs)), *(f"{epoch} {offset}" for epoch, offset in self.entries())]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs | None:
        """Decode a checkpoint; return None if the text is not a whole one."""
        try:
            version, count, *lines = data.decode("ascii").splitlines()
            pairs = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
            if version != _VERSION or int(count) != len(pairs) or not data.endswith(b"\n"):
                return None
        except ValueError:
            return None
        epochs = cls()
        for epoch, offset in pairs:
            if (len(epochs) and offset <= epochs._start_offsets[-1]) or not epochs.assign(epoch, offset):
                return None
        return epochs
