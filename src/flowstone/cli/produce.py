"""`flowstone produce`: lines of standard input become records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from confluent_kafka import KafkaError, Message, Producer

from flowstone.cli.clients import DEFAULT_BOOTSTRAP, Bootstrap, client_config, connect, explain, find_topic
from flowstone.cli.errors import CommandError
from flowstone.cli.text import counted

DELIVERY_TIMEOUT_S = 30
LINGER_MS = 5
POLL_EVERY_RECORDS = 1000

Header = tuple[str, str | bytes | None]


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write to.")],
    key_separator: Annotated[
        str, typer.Option(metavar="TEXT", help="What ends the key in a line; without it records have no key.")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record; may be given again.")
    ] = None,
    acks: Annotated[str, typer.Option(help="Who must have a record before it counts: all, 1 or 0.")] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write lines from standard input to a topic, one record each, and print how many were stored."""
    if acks not in ("all", "1", "0"):
        raise CommandError(f"--acks {acks}: expected all, 1 or 0")
    headers = [_header(each) for each in header or ()]
    stored = _send(bootstrap, topic, acks, sys.stdin.buffer, key_separator.encode(), headers)
    print(f"{'stored' if acks != '0' else 'sent'} {counted(stored, 'record')}")


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--header {text}: expected --header name=value")
    return name, value.encode()


def _send(
    bootstrap: str, topic: str, acks: str, lines: Iterable[bytes], separator: bytes, headers: list[Header]
) -> int:
    find_topic(connect(bootstrap), bootstrap, topic)
    config = client_config(
        bootstrap,
        acks=acks,
        partitioner="murmur2_random",
        enable_idempotence=acks == "all",
        linger_ms=LINGER_MS,
        message_timeout_ms=DELIVERY_TIMEOUT_S * 1000,
    )
    producer = Producer(config)
    stored = 0
    failure: KafkaError | None = None

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        nonlocal stored, failure
        if error is None:
            stored += 1
        else:
            failure = failure or error

    for number, line in enumerate(_until_interrupted(lines), start=1):
        key, value = _split(line.rstrip(b"\r\n"), separator, number)
        while failure is None:
            try:
                producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(1)
        if failure is not None:
            break
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
    left = producer.flush(DELIVERY_TIMEOUT_S)
    if failure is not None or left:
        reason = explain(failure, bootstrap) if failure is not None else f"{left} got no answer from {bootstrap}"
        raise CommandError(f"only {counted(stored, 'record')} of those sent were stored; {reason}")
    return stored


def _until_interrupted(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Ctrl-C ends the input, as Ctrl-D does: what was typed before it is stored."""
    with contextlib.suppress(KeyboardInterrupt):
        yield from lines


def _split(line: bytes, separator: bytes, number: int) -> tuple[bytes | None, bytes]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise CommandError(f"line {number} has no key separator {separator.decode()!r}: nothing from it on was sent")
    return key, value
