"""Request and response over two topics: a correlation id matches a response to its request.

The caller reads the topic of responses from its current end. It has several requests in flight, gives up one of them
after half a second, and ignores the response that arrives too late.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, wait
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.patterns import stage

POLL_S = 0.05
CALL_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class Result:
    answers: list[str]
    timed_out: bool
    late: int


class Caller:
    """A client that sends requests and waits for responses; `receive` runs in a thread."""

    def __init__(self, bootstrap: str, questions: str, answers: str) -> None:
        self._questions, self._answers = questions, answers
        self._producer = Producer({"bootstrap.servers": bootstrap})
        no_group = {"group.id": "-", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **no_group, **stage.QUICK})
        # Every caller reads all answers, and needs only those that are written from now on.
        _first, end = self._consumer.get_watermark_offsets(TopicPartition(answers, 0), timeout=stage.TIMEOUT_S)
        self._consumer.assign([TopicPartition(answers, 0, end)])
        self._waiting: dict[bytes, Future[str]] = {}
        self.late = 0

    def ask(self, question: str) -> Future[str]:
        correlation_id, answer = uuid.uuid4().bytes, Future[str]()
        self._waiting[correlation_id] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(correlation_id))  # answered or given up
        headers: dict[str, str | bytes | None] = {"correlation-id": correlation_id, "reply-to": self._answers}
        self._producer.produce(self._questions, question, headers=headers)
        self._producer.flush(stage.TIMEOUT_S)
        return answer

    def receive(self, ending: threading.Event) -> None:
        while not ending.is_set():
            for message in stage.take(self._consumer, timeout_s=POLL_S):
                answer = self._waiting.get(dict(message.headers())["correlation-id"])
                if answer is not None and answer.set_running_or_notify_cancel():
                    answer.set_result(message.value().decode())
                else:
                    self.late += 1  # or the answer is for another caller, or the second one to the same question
        self._consumer.close()


def serve(bootstrap: str, questions: str, slow_may_end: threading.Event, ending: threading.Event) -> None:
    """Run a server that squares numbers. Several servers may share the requests: they are a work queue."""
    producer = Producer({"bootstrap.servers": bootstrap})
    group = {"group.id": f"servers-of-{questions}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Consumer({"bootstrap.servers": bootstrap, **group, **stage.QUICK}) as consumer:
        consumer.subscribe([questions])
        while not ending.is_set():
            for message in stage.take(consumer, timeout_s=POLL_S):
                if message.value() == b"13":
                    slow_may_end.wait()  # an unlucky number: it takes longer than anybody waits
                headers = dict(message.headers())
                answers = headers.pop("reply-to").decode()
                producer.produce(answers, str(int(message.value()) ** 2), headers=headers)
                producer.flush(stage.TIMEOUT_S)
                consumer.commit(message=message, asynchronous=False)  # after the answer: at least once


def run(bootstrap: str) -> Result:
    questions, answers = stage.new_topic(bootstrap, "questions"), stage.new_topic(bootstrap, "answers")
    caller = Caller(bootstrap, questions, answers)
    slow_may_end, ending = threading.Event(), threading.Event()
    threads = [
        threading.Thread(target=caller.receive, args=(ending,), daemon=True),
        threading.Thread(target=serve, args=(bootstrap, questions, slow_may_end, ending), daemon=True),
    ]
    for thread in threads:
        thread.start()

    in_flight = [caller.ask(str(number)) for number in (2, 3, 4)]
    squares = [answer.result(stage.TIMEOUT_S) for answer in in_flight]
    print(f"2, 3 and 4 squared: {', '.join(squares)}")

    slow = caller.ask("13")
    timed_out = not wait([slow], CALL_TIMEOUT_S).done and slow.cancel()
    slow_may_end.set()
    squares.append(caller.ask("5").result(stage.TIMEOUT_S))
    print(f"13 squared: no answer in {CALL_TIMEOUT_S} s; 5 squared: {squares[-1]}")

    ending.set()
    for thread in threads:
        thread.join()
    print(f"answers that came too late: {caller.late}")
    return Result(squares, timed_out, caller.late)


if __name__ == "__main__":
    stage.main(run)
