"""Connection of client commands to a broker, and their error messages.

The client is confluent-kafka. Its library retries forever and logs meanwhile; a command waits for a limited time
without output, and then prints one sentence.
"""

from __future__ import annotations

import socket
from concurrent.futures import Future
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata  # type: ignore[attr-defined]

from flowstone.cli.common.errors import CommandError, refused
from flowstone.client.security import default_security

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
PORT_MAX, PORT_DIGITS_MAX = 65535, 5
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 10.0

Bootstrap = Annotated[
    str,
    typer.Option(
        envvar="FLOWSTONE_BOOTSTRAP", metavar="HOST:PORT", help="The broker's address, or several separated by commas."
    ),
]

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return the configuration for every client, with the library's log disabled."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "flowstone-cli",
        "log_level": 0,
        "socket.timeout.ms": int(REQUEST_TIMEOUT_S * 1000),
        **default_security().librdkafka(),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def reader_config(bootstrap: str) -> dict[str, Any]:
    """Return the configuration for a consumer that assigns its partitions, commits nothing and detects their ends."""
    return client_config(
        bootstrap,
        group_id="flowstone-cli",  # the library requires a group id even without a group
        enable_auto_commit=False,
        auto_offset_reset="error",
        enable_partition_eof=True,
    )


def connect(bootstrap: str) -> AdminClient:
    """Return a client of a broker that answers. Raises CommandError at once if nothing listens there."""
    check_reachable(bootstrap)
    return AdminClient(client_config(bootstrap))


def check_reachable(bootstrap: str) -> None:
    """Raise CommandError if the connection is refused, which the library would retry."""
    reason = "no address was given"
    for address in filter(None, bootstrap.split(",")):
        host, port = split_address(address.strip())
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        except UnicodeError:  # a part that is empty or too long
            reason = "that is not a host name"
    raise CommandError(
        f"cannot reach a broker at {bootstrap} ({reason}): "
        "start one with `flowstone up`, or name another with --bootstrap"
    )


def split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), DEFAULT_PORT
    if not (port.isascii() and port.isdecimal()):
        raise CommandError(f"{address} is not HOST:PORT: give the broker's address as --bootstrap HOST:PORT")
    if len(port) > PORT_DIGITS_MAX or not 0 < int(port) <= PORT_MAX:
        raise CommandError(f"{address}: there is no port {port}, ports are 1 to {PORT_MAX}: give another --bootstrap")
    return host.strip("[]"), int(port)


def explain(error: KafkaError | KafkaException, bootstrap: str) -> CommandError:
    """Return a client library's error as a CommandError with one sentence."""
    cause: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    if cause.code() in _UNREACHABLE:
        return CommandError(
            f"no answer from {bootstrap} in time: check that it is a broker, see its log, and check whether it needs "
            "encryption or a login (--config FILE)"
        )
    return refused(cause.code(), cause.str() or cause.name())


def fetch_metadata(admin: AdminClient, bootstrap: str) -> ClusterMetadata:
    """Return the metadata of all topics: a request for one topic could create it."""
    try:
        return admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise explain(error, bootstrap) from None


def find_topic(admin: AdminClient, bootstrap: str, name: str, *, to_use: bool = True) -> TopicMetadata:
    """Return a topic's metadata. Raises CommandError if it does not exist, with a hint how to create it.

    The hint is for commands that need the topic `to_use` it.
    """
    topics = fetch_metadata(admin, bootstrap).topics
    if name in topics:
        return topics[name]
    from flowstone.config import nearest

    create = f"; create it with `flowstone topic create {name}`" if to_use else "; see `flowstone topic list`"
    raise CommandError(f"there is no topic {name}{nearest(name, topics) or create}")


def result_of(future: Future[Any], bootstrap: str) -> Any:
    """Return the result of an administrative request. Raises CommandError if the broker refused it."""
    try:
        return future.result()
    except KafkaException as error:
        raise explain(error, bootstrap) from None
