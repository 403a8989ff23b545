"""The commands of the in-sync scenarios: what a leader sees and does, and the trace it leaves.

- `lead replicas=1,2,3 isr=1,2 start=0 lag=30 min=1`: broker 1 leads, its epoch begins at `start`;
- `end 10`: its own position, and the log's end, are there; `write 10`: the log's end alone is;
- `fetch 2@10 epoch=7`: broker 2, in that life, fetches from 10; several may come at once;
- `wait 5`: so many seconds pass; `look`: the timer that looks for lagging followers;
- `decide isr=1,2 replicas=1,2,3`: the cluster decides; `refuse`: it has not decided what was proposed, and will not.

After each command the high watermark is moved, and the trace tells what changed.
"""

from __future__ import annotations

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.errors import ApiError
from flowstone.replication.in_sync import InSyncReplicas

LEADER = 1


class Interpreter:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.position = self.end = self.high_watermark = 0
        self.minimum = 1
        self.trace: list[str] = []

    def run(self, line: str) -> list[str]:
        self.trace = []
        command, *words = line.split()
        plain = [word for word in words if "=" not in word]
        named = dict(word.split("=") for word in words if "=" in word)
        getattr(self, f"_{command}")(plain, named)
        if command != "wait":
            self._move()
            if command != "look":
                self._propose(expand_only=True)
        return self.trace

    def _lead(self, _: list[str], named: dict[str, str]) -> None:
        self.replicas = _ids(named["replicas"])
        self.minimum = int(named.get("min", "1"))
        self.position = self.end = int(named.get("start", "0"))
        self.high_watermark = int(named.get("hw", "0"))
        state = self._state(_ids(named["isr"]))
        lag_s = float(named.get("lag", "30"))
        self.in_sync = InSyncReplicas(LEADER, state, self.end, lag_s, self.now_s)

    def _end(self, plain: list[str], _: dict[str, str]) -> None:
        self.position = self.end = int(plain[0])

    def _write(self, plain: list[str], _: dict[str, str]) -> None:
        self.end = int(plain[0])

    def _fetch(self, plain: list[str], named: dict[str, str]) -> None:
        for each in plain:
            node_id, offset = map(int, each.split("@"))
            broker_epoch = int(named.get("epoch", "7"))
            try:
                self.in_sync.check(node_id, broker_epoch)
            except ApiError as error:
                self.trace.append(f"{node_id}: {error.code.name}")
            else:
                self.in_sync.fetched(node_id, broker_epoch, offset, self.end, self.now_s)

    def _wait(self, plain: list[str], _: dict[str, str]) -> None:
        self.now_s += float(plain[0])

    def _look(self, _: list[str], __: dict[str, str]) -> None:
        self._propose(expand_only=False)

    def _decide(self, _: list[str], named: dict[str, str]) -> None:
        self.replicas = _ids(named["replicas"]) if "replicas" in named else self.replicas
        self.in_sync.decided(self._state(_ids(named["isr"])), self.now_s)

    def _refuse(self, _: list[str], __: dict[str, str]) -> None:
        self.in_sync.refused()

    def _move(self) -> None:
        moved = self.in_sync.high_watermark(self.position, self.minimum, self.now_s)
        if moved is not None and moved > self.high_watermark:
            self.high_watermark = moved
            self.trace.append(f"high watermark {moved}")

    def _propose(self, *, expand_only: bool) -> None:
        due = self.in_sync.due_change(self.high_watermark, self.end, self.now_s)
        if due is None or (expand_only and len(due) <= len(self.in_sync.isr)):
            return
        self.in_sync.propose(due)
        members = " ".join(f"{node_id}" if epoch < 0 else f"{node_id}({epoch})" for node_id, epoch in due)
        self.trace.append(f"propose {members}")

    def _state(self, isr: tuple[int, ...]) -> PartitionImage:
        return PartitionImage(LEADER, 5, 0, self.replicas, isr)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
