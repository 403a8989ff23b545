"""The commands of the scenario files, and how what happens is written down.

    init a [timeout=60000]          InitProducerId without an id; `init-again a` gives the id and epoch that it has
    add a t-0 t-1 | add2 a t-0      AddPartitionsToTxn of a client; what a broker adds for a client of V2
    verify a t-0
    commit a | abort a              EndTxn 0 to 4; `commit2 a`, `abort2 a`: EndTxn 5
    written 1 [t-0 ...]             the markers of task 1 are written: all of them, or those
    refused 1                       a leader fenced the markers of task 1
    describe [x] | list [states=] [ids=] [duration=] [pattern=]
    wait 3000                       milliseconds
    restart [config=value ...]      the coordinator moves: whoever waits is told, the log is replayed elsewhere
    failing <command>               as the command, but what it appends is not stored
    lost <command>                  as the command, but its answer does not arrive
    stored x 5/32766 Empty [t-0]    the log ends with this record, and is replayed
    version 0                       the finalized transaction.version
    no-producer-ids | producer-ids  whether there are new producer ids at hand

A client has the transactional id x, or `id=`, and remembers its producer id and epoch as a real one does; `as=7/3`
tells it otherwise for one command. What clients hear, what is stored and which markers are to be sent is written as a
line each; a producer is written as its id, a stroke and its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flowstone.coordinator.transactions import messages as m
from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.record_format import encode
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.coordinator.transactions.state import TransactionEffects
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import START_MS, Coordinator
from tests.unit.coordinator.transactions.trace import asked, said, stored

Options = dict[str, str]
STATES = {each.label: each for each in TransactionState}


@dataclass
class Client:
    name: str
    transactional_id: str = "x"
    producer_id: int = -1
    epoch: int = -1


@dataclass(eq=False)
class Token:
    who: str
    what: str
    is_lost: bool = False
    answered: bool = False


class Interpreter:
    def __init__(self) -> None:
        self.coordinator = Coordinator(TransactionConfig(), self._reply, self._perform)
        self.clients: dict[str, Client] = {}
        self.tasks: list[m.SendMarkers] = []
        self.lines: list[str] = []
        self._asked: list[Token] = []
        self._take: Callable[[TransactionEffects], None] = self._succeed
        self._loses_answers = False
        self._verified: set[TopicPartition] = set()  # of the last `verify`, according to `has_partition`

    def run(self, command: str) -> list[str]:
        self.lines = []
        words = command.split()
        self._take = self._fail if words[0] == "failing" else self._succeed
        self._loses_answers = words[0] == "lost"
        if words[0] in ("failing", "lost"):
            del words[0]
        names = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        getattr(self, "do_" + words[0].replace("-", "_"))(names, options)
        return self.lines

    # What clients do

    def do_init(self, names: list[str], options: Options) -> None:
        client = self._client(names, options)
        self._initialize(client, "init", m.InitProducerIdRequest(client.transactional_id, _timeout(options)))

    def do_init_again(self, names: list[str], options: Options) -> None:
        client = self._client(names, options)
        producer = _producer(client, options)
        request = m.InitProducerIdRequest(client.transactional_id, _timeout(options), *producer)
        self._initialize(client, "init-again", request)

    def _initialize(self, client: Client, what: str, request: m.InitProducerIdRequest) -> None:
        self._ask(Token(client.name, what), self.coordinator.shard.init_producer_id, request)

    def do_add(self, names: list[str], options: Options, what: str = "add", version: int = m.V1) -> None:
        request = self._partitions_request(names, options, version)
        self._ask(Token(names[0], what), self.coordinator.shard.add_partitions, request)

    def do_add2(self, names: list[str], options: Options) -> None:
        self.do_add(names, options, "add2", m.V2)

    def do_verify(self, names: list[str], options: Options) -> None:
        request = self._partitions_request(names, options, m.V1)
        shard, (transactional_id, producer_id, epoch) = self.coordinator.shard, request[:3]
        self._verified = {
            each for each in request.partitions if shard.has_partition(transactional_id, producer_id, epoch, each)
        }
        self._ask(Token(names[0], "verify"), shard.verify_partitions, request)

    def _partitions_request(self, names: list[str], options: Options, version: int) -> m.AddPartitionsRequest:
        client = self._client(names, options)
        producer = _producer(client, options)
        return m.AddPartitionsRequest(client.transactional_id, *producer, _partitions(names[1:]), version)

    def do_commit(self, names: list[str], options: Options) -> None:
        self._end("commit", m.V1, names, options, is_commit=True)

    def do_abort(self, names: list[str], options: Options) -> None:
        self._end("abort", m.V1, names, options, is_commit=False)

    def do_commit2(self, names: list[str], options: Options) -> None:
        self._end("commit2", m.V2, names, options, is_commit=True)

    def do_abort2(self, names: list[str], options: Options) -> None:
        self._end("abort2", m.V2, names, options, is_commit=False)

    def _end(self, what: str, version: int, names: list[str], options: Options, *, is_commit: bool) -> None:
        client = self._client(names, options)
        producer = _producer(client, options)
        request = m.EndTransactionRequest(client.transactional_id, *producer, is_commit, version)
        self._ask(Token(client.name, what), self.coordinator.shard.end_transaction, request)

    # What operators do

    def do_describe(self, names: list[str], options: Options) -> None:
        transactional_id = "" if options.get("id") == "" else (names or ["x"])[0]
        self._ask(Token("operator", "describe"), self.coordinator.shard.describe_transaction, transactional_id)

    def do_list(self, names: list[str], options: Options) -> None:
        request = m.ListTransactionsRequest(
            tuple(filter(None, options.get("states", "").split(","))),
            tuple(int(each) for each in options.get("ids", "").split(",") if each),
            int(options.get("duration", "-1")),
            options.get("pattern"),
        )
        self._ask(Token("operator", "list"), self.coordinator.shard.list_transactions, request)

    # What happens

    def do_written(self, names: list[str], options: Options) -> None:
        task = self.tasks[int(names[0]) - 1]
        partitions = _partitions(names[1:]) or task.partitions
        self._take(self.coordinator.shard.markers_written(self.coordinator.now_ms, task, partitions))

    def do_refused(self, names: list[str], options: Options) -> None:
        task = self.tasks[int(names[0]) - 1]
        self._take(self.coordinator.shard.markers_refused(self.coordinator.now_ms, task))

    def do_wait(self, names: list[str], options: Options) -> None:
        end_ms = self.coordinator.now_ms + int(names[0])
        shard = self.coordinator.shard
        while (deadline_ms := shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.coordinator.now_ms = max(deadline_ms, self.coordinator.now_ms)
            effects = shard.tick(self.coordinator.now_ms)
            if effects.records or effects.replies or effects.tasks:
                self.lines.append(f"at {self.coordinator.now_ms - START_MS}:")
            self._take(effects)
        self.coordinator.now_ms = end_ms

    def do_restart(self, names: list[str], options: Options) -> None:
        changes = {key: int(value) for key, value in options.items()}
        self.coordinator.config = replace(self.coordinator.config, **changes)
        self._lose_waiting()
        before = len(self.coordinator.log)
        self.coordinator.reload()
        self.lines[:0] = [f"record: {stored(record)}" for record in self.coordinator.stored()[before:]]

    def do_stored(self, names: list[str], options: Options) -> None:
        transactional_id, producer, state, *partitions = names
        record = TransactionStored(
            transactional_id,
            *_pair(producer),
            int(options.get("timeout", "60000")),
            STATES[state],
            self.coordinator.now_ms,
            _partitions(partitions),
            -1 if state == "Empty" else self.coordinator.now_ms,
            client_version=int(options.get("version", "0")),
        )
        self.coordinator.log.append(encode(record))
        self.do_restart([], {})

    def do_version(self, names: list[str], options: Options) -> None:
        self.coordinator.transaction_version = int(names[0])

    def do_no_producer_ids(self, names: list[str], options: Options) -> None:
        self.coordinator.has_producer_ids = False

    def do_producer_ids(self, names: list[str], options: Options) -> None:
        self.coordinator.has_producer_ids = True

    def _client(self, names: list[str], options: Options) -> Client:
        client = self.clients.setdefault(names[0], Client(names[0]))
        client.transactional_id = options.get("id", client.transactional_id)
        return client

    def _ask(self, token: Token, method: Any, request: Any) -> None:
        token.is_lost = self._loses_answers
        self._asked.append(token)
        self._take(method(self.coordinator.now_ms, token, request))

    def _succeed(self, effects: TransactionEffects) -> None:
        self.lines.extend(f"record: {stored(record)}" for record in effects.records)
        self.coordinator.take(effects)

    def _fail(self, effects: TransactionEffects) -> None:
        assert effects.records, "nothing was appended"
        self.lines.append("append failed")
        self._lose_waiting()
        self.coordinator.reload()

    def _lose_waiting(self) -> None:
        for token in self._asked:
            if not token.answered:
                self.lines.append(f"{token.who}: {token.what} is told to look for the coordinator again")
        self._asked = []

    def _reply(self, token: Token, response: Any) -> None:
        assert not token.answered, "a request is answered once"
        token.answered = True
        self.lines.append(f"{token.who}: {token.what} {said(response)}" + (" (lost)" if token.is_lost else ""))
        if isinstance(response, m.VerifyPartitionsResponse):
            found = {each for each, code in response.errors.items() if code is ErrorCode.NONE}
            assert found == self._verified, "has_partition says otherwise"
        if token.is_lost or not isinstance(response, m.InitProducerIdResponse | m.EndTransactionResponse):
            return
        if response.error_code is ErrorCode.NONE and response.producer_id >= 0:
            client = self.clients[token.who]
            client.producer_id, client.epoch = response.producer_id, response.producer_epoch

    def _perform(self, task: m.SendMarkers) -> None:
        if task not in self.tasks:
            self.tasks.append(task)
        self.lines.append(f"task {self.tasks.index(task) + 1}: {asked(task)}")


def _timeout(options: Options) -> int:
    return int(options.get("timeout", "60000"))


def _producer(client: Client, options: Options) -> tuple[int, int]:
    return _pair(options["as"]) if "as" in options else (client.producer_id, client.epoch)


def _pair(text: str) -> tuple[int, int]:
    producer_id, epoch = text.split("/")
    return int(producer_id), int(epoch)


def _partition(text: str) -> TopicPartition:
    topic, partition = text.rsplit("-", 1)
    return TopicPartition(topic, int(partition))


def _partitions(texts: list[str]) -> frozenset[TopicPartition]:
    return frozenset(_partition(text) for text in texts)
