"""The commands of the scenario files, and how what happens is written down.

    join a [instance=] [protocols=range,sticky] [topics=t,u] [data=] [owned=t-0] [session=] [rebalance=] [reason=]
           [version=9]
    sync a [a=t-0 b=t-1]          the leader gives assignments by client name
    heartbeat a | leave a [reason=] | remove instance=i     (an operator removes a static member)
    commit a t-0=5 [epoch=] [metadata=] [retention=] | commit-alone t-0=5 | fetch [t-0 ...] | delete-offsets t-0 ...
    txn-commit a producer=1 t-0=5 | txn-commit-alone producer=1 t-0=5      in the transaction of this producer id
    end producer=1 commit | end producer=1 abort | fetch stable [t-0 ...]
    list [states=] | describe | delete-group | topic-deleted t-0 ...
    form a b ...                  joins, waits and syncs until these are a Stable group; client n has partition t-n
    wait 3000                     milliseconds
    restart [config=value ...]    the coordinator moves: waiting requests are told, the log is replayed elsewhere
    failing <command>             as the command, but what it appends is not stored

A client remembers its member id, generation and options as a real one does; `member=`, `generation=` and `group=` tell
it otherwise for one command. What clients hear, what is stored and what becomes of the group is written as a line each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.groups import messages as m
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.transactional_commits import EndTransactionRequest, TransactionalCommitRequest
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import EndMarker
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, assignment, subscription
from tests.unit.coordinator.groups.trace import said, stored

Options = dict[str, str]


@dataclass
class Client:
    name: str
    member_id: str = ""
    generation: int = -1
    options: Options = field(default_factory=dict)


@dataclass(eq=False)
class Token:
    who: str
    what: str
    partitions: list[str] = field(default_factory=list)
    answered: bool = False


class Interpreter:
    def __init__(self) -> None:
        self.coordinator = Coordinator(GroupConfig(), self._reply)
        self.clients: dict[str, Client] = {}
        self.lines: list[str] = []
        self._asked: list[Token] = []
        self._seen: dict[str, tuple[str, int]] = {}

    def run(self, command: str) -> list[str]:
        self.lines = []
        verb, *words = command.split()
        self._run(verb, words, self._take)
        return self.lines

    def _run(self, verb: str, words: list[str], take: Callable[[Effects[GroupRecord]], None]) -> None:
        if verb == "failing":
            self._run(words[0], words[1:], self._fail)
            return
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, "do_" + verb.replace("-", "_"))(names, options, take)

    # What clients do

    def do_join(self, names: list[str], options: Options, take: Any) -> None:
        client = self.clients.setdefault(names[0], Client(names[0]))
        client.options.update({key: value for key, value in options.items() if key not in ("member", "group")})
        wants = client.options | options
        metadata = subscription(wants.get("topics", "t").split(","), wants.get("data", ""), wants.get("owned", ""))
        if wants.get("metadata"):
            metadata = wants["metadata"].encode()
        version = int(wants.get("version", "9"))
        request = m.JoinRequest(
            wants.get("group", "g"),
            int(wants.get("session", "10000")),
            int(wants.get("rebalance", "60000")),
            wants.get("type", "consumer"),
            tuple((name, metadata) for name in wants.get("protocols", "range").split(",") if name),
            options.get("member", client.member_id),
            wants.get("instance"),
            client.name,
            "/127.0.0.1",
            options.get("reason"),
            version >= 4,
            version >= 9,
        )
        self._ask(take, Token(client.name, "join"), self.coordinator.shard.join, request)

    def do_sync(self, names: list[str], options: Options, take: Any) -> None:
        client = self.clients[names[0]]
        request = m.SyncRequest(
            "g",
            options.get("member", client.member_id),
            int(options.get("generation", client.generation)),
            client.options.get("instance"),
            options.get("type"),
            options.get("protocol"),
            tuple((self.clients[k].member_id, assignment(v)) for k, v in options.items() if k in self.clients),
        )
        self._ask(take, Token(client.name, "sync"), self.coordinator.shard.sync, request)

    def do_heartbeat(self, names: list[str], options: Options, take: Any) -> None:
        for name in names:
            client = self.clients[name]
            request = m.HeartbeatRequest(
                options.get("group", "g"),
                options.get("member", client.member_id),
                int(options.get("generation", client.generation)),
                client.options.get("instance"),
            )
            self._ask(take, Token(name, "heartbeat"), self.coordinator.shard.heartbeat, request)

    def do_leave(self, names: list[str], options: Options, take: Any) -> None:
        leaving = [
            m.LeavingMember(
                options.get("member", self.clients[name].member_id),
                self.clients[name].options.get("instance"),
                options.get("reason"),
            )
            for name in names
        ]
        self._ask(
            take, Token(" ".join(names), "leave"), self.coordinator.shard.leave, m.LeaveRequest("g", tuple(leaving))
        )

    def do_remove(self, names: list[str], options: Options, take: Any) -> None:
        request = m.LeaveRequest("g", (m.LeavingMember("", options["instance"], options.get("reason")),))
        self._ask(take, Token("operator", "leave"), self.coordinator.shard.leave, request)

    def do_commit(self, names: list[str], options: Options, take: Any) -> None:
        client = self.clients[names[0]]
        self._commit(client.name, client, options, take)

    def do_commit_alone(self, names: list[str], options: Options, take: Any) -> None:
        self._commit("nobody", Client("nobody"), options, take)

    def do_txn_commit(self, names: list[str], options: Options, take: Any) -> None:
        client = self.clients[names[0]]
        self._commit_in_transaction(client.name, client, options, take)

    def do_txn_commit_alone(self, names: list[str], options: Options, take: Any) -> None:
        self._commit_in_transaction("nobody", Client("nobody"), options, take)

    def _commit_in_transaction(self, who: str, client: Client, options: Options, take: Any) -> None:
        request, partitions = _commit_request(client, options)
        asked = TransactionalCommitRequest(_producer(options), request)
        self._ask(take, Token(who, "txn-commit", partitions), self.coordinator.shard.commit_in_transaction, asked)

    def do_end(self, names: list[str], options: Options, take: Any) -> None:
        marker = EndMarker(names == ["commit"], 0)
        request = EndTransactionRequest(_producer(options), marker, 1)
        self._ask(take, Token("producer", f"end {names[0]}"), self.coordinator.shard.end_transaction, request)

    def _commit(self, who: str, client: Client, options: Options, take: Any) -> None:
        request, partitions = _commit_request(client, options)
        self._ask(take, Token(who, "commit", partitions), self.coordinator.shard.commit_offsets, request)

    def do_fetch(self, names: list[str], options: Options, take: Any) -> None:
        is_stable = names[:1] == ["stable"]
        request = m.FetchOffsetsRequest(options.get("group", "g"), _partitions(names[is_stable:]) or None, is_stable)
        self._ask(take, Token("nobody", "fetch"), self.coordinator.shard.fetch_offsets, request)

    # What operators do

    def do_delete_offsets(self, names: list[str], options: Options, take: Any) -> None:
        request = m.DeleteOffsetsRequest(options.get("group", "g"), _partitions(names))
        self._ask(take, Token("operator", "delete-offsets"), self.coordinator.shard.delete_offsets, request)

    def do_list(self, names: list[str], options: Options, take: Any) -> None:
        states, types = (tuple(options[key].split(",")) if key in options else () for key in ("states", "types"))
        request = m.ListGroupsRequest(states, types)
        self._ask(take, Token("operator", "list"), self.coordinator.shard.list_groups, request)

    def do_describe(self, names: list[str], options: Options, take: Any) -> None:
        token = Token("operator", "describe")
        self._ask(take, token, self.coordinator.shard.describe_group, options.get("group", "g"))

    def do_delete_group(self, names: list[str], options: Options, take: Any) -> None:
        self._ask(take, Token("operator", "delete-group"), self.coordinator.shard.delete_groups, names or ["g"])

    def do_topic_deleted(self, names: list[str], options: Options, take: Any) -> None:
        take(self.coordinator.shard.remove_partitions(self.coordinator.now_ms, _partitions(names)))

    # What happens

    def do_form(self, names: list[str], options: Options, take: Any) -> None:
        for _ in range(2):
            for name in names:
                if not (name in self.clients and self.clients[name].options.get("instance")):
                    mine = {key.split(".")[-1]: v for key, v in options.items() if key.split(".")[0] in (name, key)}
                    self.do_join([name], mine, take)
        while self._seen["g"][0] == "PreparingRebalance":
            self.do_wait(["1000"], {}, take)
        assignments = {name: f"t-{number}" for number, name in enumerate(names)}
        for name in reversed(names):
            self.do_sync([name], assignments, take)
        self.lines = [line for line in self.lines if line.startswith("g: Stable")]

    def do_wait(self, names: list[str], options: Options, take: Any) -> None:
        end_ms = self.coordinator.now_ms + int(names[0])
        shard = self.coordinator.shard
        while (deadline_ms := shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.coordinator.now_ms = deadline_ms
            effects = shard.tick(deadline_ms)
            if effects.records or effects.replies or self._changes():
                self.lines.append(f"at {deadline_ms - START_MS}:")
            take(effects)
        self.coordinator.now_ms = end_ms

    def do_restart(self, names: list[str], options: Options, take: Any) -> None:
        config = replace(self.coordinator.config, **{key: int(value) for key, value in options.items()})
        self.coordinator.config = config
        self._lose_waiting()
        self.coordinator.reload()
        self._write_changes()

    def _ask(self, take: Any, token: Token, method: Any, request: Any) -> None:
        self._asked.append(token)
        take(method(self.coordinator.now_ms, token, request))
        if not token.answered:
            self.lines.append(f"{token.who}: {token.what} waits")

    def _take(self, effects: Effects[GroupRecord]) -> None:
        where = f" in the transaction of {effects.producer.producer_id}" if effects.producer is not None else ""
        self.lines.extend(f"record: {stored(record)}{where}" for record in effects.records)
        if effects.producer is not None and effects.marker is not None:
            outcome = "commit" if effects.marker.is_commit else "abort"
            self.lines.append(f"marker: {outcome} of {effects.producer.producer_id}")
        self.coordinator.take(effects)
        self._write_changes()

    def _fail(self, effects: Effects[GroupRecord]) -> None:
        assert effects.records, "nothing was appended"
        self.lines.append("append failed")
        self._lose_waiting()
        self.coordinator.reload()
        self._write_changes()

    def _lose_waiting(self) -> None:
        """The runtime's part: waiting requests are told to look for the coordinator again."""
        for token in self._asked:
            if not token.answered:
                token.answered = True
                self.lines.append(f"{token.who}: {token.what} NOT_COORDINATOR")

    # What is written down

    def _changes(self) -> dict[str, tuple[tuple[str, int], str]]:
        changes = {}
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        ((_, listed),) = shard.list_groups(now_ms, None, m.ListGroupsRequest()).replies
        for group_id in {each.group_id for each in listed.groups} | set(self._seen):
            ((_, group),) = shard.describe_group(now_ms, None, group_id).replies
            was = self._seen.get(group_id, ("Dead", 0))
            now = (group.state, max(group.generation, 0))
            if now != was:
                text = f"{group.state} generation={now[1]}" if group.state != "Dead" else "Dead"
                changes[group_id] = (now, f"{text}{self._why(group)}")
        return changes

    def _why(self, group: m.DescribedGroup) -> str:
        return f" ({group.rebalance_reason})" if group.state == "PreparingRebalance" else ""

    def _write_changes(self) -> None:
        for group_id, (now, text) in sorted(self._changes().items()):
            self._seen[group_id] = now
            self.lines.append(f"{group_id}: {text}")

    def _reply(self, token: Token, response: Any) -> None:
        assert not token.answered, "a request is answered once"
        token.answered = True
        client = self.clients.get(token.who)
        if isinstance(response, m.JoinResponse) and client is not None:
            learns = response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
            client.member_id = response.member_id if learns else client.member_id
            client.generation = response.generation_id if learns else client.generation
        self.lines.append(f"{token.who}: {token.what} {said(response, token.partitions)}")


def _commit_request(client: Client, options: Options) -> tuple[m.CommitRequest, list[str]]:
    """Return the request and the partitions that it names, as the command names them."""
    metadata, epoch = options.get("metadata"), int(options.get("epoch", "-1"))
    partitions = [key for key in options if "-" in key]
    request = m.CommitRequest(
        options.get("group", "g"),
        [(*_partition(key), int(options[key]), epoch, metadata) for key in partitions],
        options.get("member", client.member_id),
        int(options.get("generation", client.generation)),
        client.options.get("instance"),
        int(options.get("retention", "-1")),
    )
    return request, partitions


def _producer(options: Options) -> TransactionalProducer:
    return TransactionalProducer(int(options["producer"]), 0)


def _partition(text: str) -> TopicPartition:
    topic, partition = text.rsplit("-", 1)
    return TopicPartition(topic, int(partition))


def _partitions(texts: list[str]) -> tuple[TopicPartition, ...]:
    return tuple(_partition(text) for text in texts)
