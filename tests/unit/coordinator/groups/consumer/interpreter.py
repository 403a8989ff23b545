"""The commands of the scenario files of consumer groups, and how what happens is written down.

topics t=4 u=2                the cluster's topics, with their partitions; a topic that is missing was deleted
join a topics=t [regex=] [instance=] [rack=] [assignor=] [rebalance=60000] [version=1]    a heartbeat with epoch 0
beat a [owned=t-0,t-1|none|all] [topics=] [regex=] [epoch=] [member=] [group=] [full]     a later one
settle a b                    heartbeats, in which members confirm what they have, until nothing changes any more
leave a | leave-for-now a     with epoch -1 or -2
resolve | fail                the topics that match regular expressions are determined, or a task fails
compute [a b]                 the targets of a large assignment are stored: of some members, or of all that are left
classic-join x topics=t [owned=] [instance=] [version=9] | classic-sync x | classic-beat x | classic-leave x
form-classic x t-0 [data=]    the leader of a classic group assigns partitions to itself
commit a t-0=5 [epoch=] [version=10] | txn-commit a t-0=5 | commit-alone t-0=5 | fetch a [epoch=]
list [states=] [types=] | describe | describe-classic | delete-group | why
wait 3000                     milliseconds
restart [config=value ...]    the coordinator moves: the log is replayed elsewhere
setting name=value            a setting of the group
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.groups import messages as classic
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer import messages as m
from flowstone.coordinator.groups.consumer.regexes import ResolveRegexes, compile_regex, resolved
from flowstone.coordinator.groups.consumer.target import ComputeTargets, Target, run_at_once, targets_computed
from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.transactional_commits import TransactionalCommitRequest
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.consumer.named_topics import NamedTopics
from tests.unit.coordinator.groups.consumer.trace import stored
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, assignment, subscription
from tests.unit.coordinator.groups.trace import said as classic_said

Options = dict[str, str]


@dataclass
class Client:
    name: str
    epoch: int = 0
    has: frozenset[Partition] = frozenset()
    instance: str | None = None
    topics: str = "t"
    regex: str | None = None
    classic_id: str = ""


@dataclass(eq=False)
class Token:
    who: str
    what: str
    partitions: list[str] = field(default_factory=list)


class Interpreter:
    def __init__(self) -> None:
        self.topics = NamedTopics()
        self.settings = GroupSettings()
        self.coordinator = Coordinator(GroupConfig(), self._reply, self.topics)
        self.coordinator.settings = lambda group_id: self.settings
        self.coordinator.reload()
        self.clients: dict[str, Client] = {}
        self.tasks: list[ResolveRegexes | ComputeTargets] = []
        self.targets: list[Target] | None = None  # those of the first task that are not stored yet
        self.lines: list[str] = []
        self._waiting: set[Token] = set()
        self._seen = ""

    def run(self, command: str) -> list[str]:
        self.lines = []
        verb, *words = command.split()
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, "do_" + verb.replace("-", "_"))(names, options)
        return self.lines

    # The cluster

    def do_topics(self, names: list[str], options: Options) -> None:
        self.topics.become({name: int(count) for name, count in options.items()})

    def do_setting(self, names: list[str], options: Options) -> None:
        self.settings = replace(self.settings, **{key: int(value) for key, value in options.items()})

    def do_resolve(self, names: list[str], options: Options) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            assert isinstance(task, ResolveRegexes)
            found = {
                regex: tuple(name for name in self.topics.names() if compile_regex(regex).fullmatch(name))
                for regex in task.regexes
            }
            shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
            self._take(shard.task_done(now_ms, task.group_id, partial(resolved, found=found)))

    def do_fail(self, names: list[str], options: Options) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
            if isinstance(task, ResolveRegexes):
                self._take(shard.task_done(now_ms, task.group_id, partial(resolved, found=None)))
            else:
                failed = partial(targets_computed, task=task, part=None)
                self._take(shard.task_done(now_ms, task.group_id, failed))

    def do_compute(self, names: list[str], options: Options) -> None:
        if not self.tasks:
            self.lines.append("nothing to compute")
            return
        task = self.tasks[0]
        assert isinstance(task, ComputeTargets)
        if self.targets is None:
            self.targets = run_at_once(task.steps)
        part = [each for each in self.targets if not names or each.member_id in names]
        self.targets = [each for each in self.targets if each not in part]
        store = partial(targets_computed, task=task, part=part, is_last=not self.targets)
        if not self.targets:
            del self.tasks[0]
            self.targets = None
        self._take(self.coordinator.shard.task_done(self.coordinator.now_ms, task.group_id, store))

    # Members

    def do_join(self, names: list[str], options: Options) -> None:
        for name in names:
            client = self.clients.setdefault(name, Client(name))
            client.epoch, client.has = 0, frozenset()
            client.instance = options.get("instance", client.instance)
            client.topics, client.regex = options.get("topics", client.topics), options.get("regex", client.regex)
            topics = {} if "regex" in options and "topics" not in options else {"topics": client.topics}
            full = {"owned": "none", "rebalance": "60000"} | topics
            self._beat(client, full | options)

    def do_beat(self, names: list[str], options: Options) -> None:
        full = names[-1] == "full"
        for name in names[:-1] if full else names:
            client = self.clients[name]
            everything = {"owned": "all", "topics": client.topics, "rebalance": "60000"} if full else {}
            self._beat(client, everything | options)

    def do_leave(self, names: list[str], options: Options) -> None:
        for name in names:
            self._beat(self.clients[name], options | {"epoch": options.get("epoch", "-1")})

    def do_leave_for_now(self, names: list[str], options: Options) -> None:
        self.do_leave(names, options | {"epoch": "-2"})

    def _beat(self, client: Client, options: Options) -> None:
        owned = options.get("owned")
        topics, regex = options.get("topics"), options.get("regex")
        request = m.ConsumerHeartbeatRequest(
            options.get("group", "g"),
            options.get("member", client.name),
            int(options.get("epoch", client.epoch)),
            options.get("instance", client.instance),
            options.get("rack"),
            int(options.get("rebalance", "-1")),
            None if topics is None else tuple(filter(None, topics.split(","))),
            regex,
            options.get("assignor"),
            client.has if owned == "all" else self._partitions(owned),
            client.name,
            "/127.0.0.1",
            options.get("version", "1") == "1",
        )
        self._ask(Token(client.name, "beat"), self.coordinator.shard.consumer_heartbeat, request)

    def do_settle(self, names: list[str], options: Options) -> None:
        """Only what is assigned at the end is written down."""
        for _ in range(40):
            before = len(self.coordinator.log)
            for name in names:
                self._beat(self.clients[name], {"owned": "all"})
            if len(self.coordinator.log) == before and self._described().state == "Stable":
                break
            self.coordinator.advance(500)
        state = [line for line in self.lines if line.startswith("g: ")][-1:]
        self.lines = state + [f"{name}: has {self._told(self.clients[name].has)}" for name in names]

    # Members of the classic protocol

    def do_classic_join(self, names: list[str], options: Options) -> None:
        client = self.clients.setdefault(names[0], Client(names[0]))
        client.instance = options.get("instance", client.instance)
        client.topics = options.get("topics", client.topics)
        owned = options.get("owned", "")
        metadata = subscription(client.topics.split(","), options.get("data", ""), "" if owned == "none" else owned)
        metadata = b"garbage" if "garbage" in names else metadata
        request = classic.JoinRequest(
            "g",
            int(options.get("session", "45000")),
            int(options.get("rebalance", "60000")),
            options.get("type", "consumer"),
            tuple((name, metadata) for name in options.get("protocols", "range").split(",")),
            options.get("member", client.classic_id),
            client.instance,
            client.name,
            "/127.0.0.1",
            None,
            int(options.get("version", "9")) >= 4,
            int(options.get("version", "9")) >= 9,
        )
        self._ask(Token(client.name, "join"), self.coordinator.shard.join, request)

    def do_form_classic(self, names: list[str], options: Options) -> None:
        """The leader of a classic group assigns partitions to itself."""
        client = self.clients[names[0]]
        data = options.get("data", "").encode()
        given = assignment(names[1])[:-4] + (len(data).to_bytes(4) + data if data else (-1).to_bytes(4, signed=True))
        given = b"garbage" if "garbage" in names else given
        request = classic.SyncRequest(
            "g", client.classic_id, client.epoch, client.instance, assignments=((client.classic_id, given),)
        )
        self._ask(Token(client.name, "sync"), self.coordinator.shard.sync, request)

    def do_classic_sync(self, names: list[str], options: Options) -> None:
        client = self.clients[names[0]]
        request = classic.SyncRequest(
            "g", client.classic_id, int(options.get("generation", client.epoch)), client.instance
        )
        self._ask(Token(client.name, "sync"), self.coordinator.shard.sync, request)

    def do_classic_beat(self, names: list[str], options: Options) -> None:
        for name in names:
            client = self.clients[name]
            request = classic.HeartbeatRequest(
                "g", client.classic_id, int(options.get("generation", client.epoch)), client.instance
            )
            self._ask(Token(name, "heartbeat"), self.coordinator.shard.heartbeat, request)

    def do_classic_leave(self, names: list[str], options: Options) -> None:
        leaving = tuple(
            classic.LeavingMember(self.clients[name].classic_id or name, self.clients[name].instance) for name in names
        )
        if "instance" in options:
            leaving = (classic.LeavingMember("", options["instance"]),)
        request = classic.LeaveRequest("g", leaving)
        self._ask(Token(" ".join(names) or "operator", "leave"), self.coordinator.shard.leave, request)

    # Offsets

    def do_commit(self, names: list[str], options: Options) -> None:
        request, partitions = self._commit_request(self.clients[names[0]], options)
        self._ask(Token(names[0], "commit", partitions), self.coordinator.shard.commit_offsets, request)

    def do_txn_commit(self, names: list[str], options: Options) -> None:
        request, partitions = self._commit_request(self.clients[names[0]], options)
        asked = TransactionalCommitRequest(TransactionalProducer(1, 0), request)
        self._ask(Token(names[0], "txn-commit", partitions), self.coordinator.shard.commit_in_transaction, asked)

    def do_commit_alone(self, names: list[str], options: Options) -> None:
        request, partitions = self._commit_request(Client("", -1), options)
        self._ask(Token("nobody", "commit", partitions), self.coordinator.shard.commit_offsets, request)

    def _commit_request(self, client: Client, options: Options) -> tuple[classic.CommitRequest, list[str]]:
        partitions = [key for key in options if "-" in key]
        offsets = [(*_split(key), int(options[key]), -1, None) for key in partitions]
        member_id = options.get("member", client.classic_id or client.name)
        epoch = int(options.get("epoch", client.epoch))
        knows = int(options.get("version", "10")) >= 9
        request = classic.CommitRequest("g", offsets, member_id, epoch, client.instance, knows_member_epochs=knows)
        return request, partitions

    def do_fetch(self, names: list[str], options: Options) -> None:
        client = self.clients.get(names[0], Client(names[0]))
        member_id, epoch = options.get("member", client.name), int(options.get("epoch", client.epoch))
        request = classic.FetchOffsetsRequest("g", member_id=member_id or None, member_epoch=epoch)
        self._ask(Token(client.name, "fetch"), self.coordinator.shard.fetch_offsets, request)

    # What operators do

    def do_list(self, names: list[str], options: Options) -> None:
        states, types = (tuple(options[key].split(",")) if key in options else () for key in ("states", "types"))
        self._ask(
            Token("operator", "list"), self.coordinator.shard.list_groups, classic.ListGroupsRequest(states, types)
        )

    def do_describe(self, names: list[str], options: Options) -> None:
        self._ask(Token("operator", "describe"), self.coordinator.shard.describe_consumer_group, "g")

    def do_describe_classic(self, names: list[str], options: Options) -> None:
        self._ask(Token("operator", "describe"), self.coordinator.shard.describe_group, "g")

    def do_delete_group(self, names: list[str], options: Options) -> None:
        self._ask(Token("operator", "delete-group"), self.coordinator.shard.delete_groups, ["g"])

    def do_why(self, names: list[str], options: Options) -> None:
        described = self._described()
        self.lines.append(described.unsettled or "it has settled")

    # What happens

    def do_wait(self, names: list[str], options: Options) -> None:
        end_ms = self.coordinator.now_ms + int(names[0])
        shard = self.coordinator.shard
        while (deadline_ms := shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.coordinator.now_ms = max(deadline_ms, self.coordinator.now_ms)
            effects = shard.tick(self.coordinator.now_ms)
            if effects.records or effects.replies:
                self.lines.append(f"at {self.coordinator.now_ms - START_MS}:")
            self._take(effects)
        self.coordinator.now_ms = end_ms

    def do_restart(self, names: list[str], options: Options) -> None:
        changes: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in options.items()}
        self.coordinator.config = replace(self.coordinator.config, **changes)
        self.tasks.clear()
        self.targets = None
        for token in sorted(self._waiting, key=lambda each: each.who):
            self.lines.append(f"{token.who}: {token.what} NOT_COORDINATOR")
        self._waiting.clear()
        self.coordinator.reload()
        self._write_state()

    def _ask(self, token: Token, method: Any, request: Any) -> None:
        self._waiting.add(token)
        self._take(method(self.coordinator.now_ms, token, request))
        if token in self._waiting:
            self.lines.append(f"{token.who}: {token.what} waits")

    def _take(self, effects: Effects[GroupRecord]) -> None:
        self.tasks += effects.tasks
        self.lines += [f"record: {stored(record, self._told)}" for record in effects.records]
        self.coordinator.take(effects)
        self._write_state()

    def _reply(self, token: Token, response: Any) -> None:
        self._waiting.discard(token)
        client = self.clients.get(token.who)
        if isinstance(response, m.ConsumerHeartbeatResponse) and client is not None:
            self._hear(client, response)
        elif isinstance(response, m.ConsumerGroupDescribed):
            self._describe(response)
        elif isinstance(response, classic.FetchOffsetsResponse) and response.error_code is not ErrorCode.NONE:
            self.lines.append(f"{token.who}: {token.what} {response.error_code.name}")
        else:
            if isinstance(response, classic.JoinResponse) and client is not None and response.member_id:
                client.classic_id, client.epoch = response.member_id, response.generation_id
            self.lines.append(f"{token.who}: {token.what} {classic_said(response, token.partitions)}")

    def _hear(self, client: Client, response: m.ConsumerHeartbeatResponse) -> None:
        line = f"{client.name}: {response.error_code.name}"
        if response.error_code is ErrorCode.NONE:
            client.epoch = response.member_epoch
            line += f" epoch={response.member_epoch}"
            if response.assigned is not None:
                client.has = response.assigned
                line += f" has={self._told(response.assigned)}"
            if response.heartbeat_interval_ms not in (0, self.settings.consumer_heartbeat_interval_ms):
                line += f" in={response.heartbeat_interval_ms}"
        self.lines.append(line)

    def _describe(self, response: m.ConsumerGroupDescribed) -> None:
        if response.error_code is not ErrorCode.NONE:
            self.lines.append(f"{response.error_code.name} {response.state}")
            return
        epochs = f"epoch={response.group_epoch}/{response.assignment_epoch}"
        self.lines.append(f"{response.state} {epochs} assignor={response.assignor}")
        for each in response.members:
            has, target = self._told(each.assigned), self._told(each.target)
            line = f"  {each.member_id} epoch={each.member_epoch} {each.state} has={has} target={target}"
            self.lines.append(line + (f" revoking={self._told(each.revoking)}" if each.revoking else ""))

    def _described(self) -> m.ConsumerGroupDescribed:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        ((_, described),) = shard.describe_consumer_group(now_ms, None, "g").replies
        assert isinstance(described, m.ConsumerGroupDescribed)
        return described

    def _write_state(self) -> None:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        described = self._described()
        told = f"g: {described.state} epoch={described.group_epoch}/{described.assignment_epoch}"
        if described.error_code is not ErrorCode.NONE:
            ((_, group),) = shard.describe_group(now_ms, None, "g").replies
            told = f"g: classic {group.state} generation={group.generation}" if group.state != "Dead" else "g: Dead"
        if told != self._seen and (self._seen or told != "g: Dead"):
            self.lines.append(told)
        self._seen = told

    def _told(self, partitions: Any) -> str:
        names = ((self.topics.former_name(topic_id), index) for topic_id, index in partitions)
        return ",".join(f"{name}-{index}" for name, index in sorted(names)) or "nothing"

    def _partitions(self, text: str | None) -> frozenset[Partition] | None:
        if text is None:
            return None
        places = (_split(each) for each in text.split(",") if each != "none")
        return frozenset((self.topics.id_of(name), index) for name, index in places)


def _split(text: str) -> tuple[str, int]:
    name, index = text.rsplit("-", 1)
    return name, int(index)
