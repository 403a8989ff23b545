"""`flowstone quota`: sets, lists and removes quotas of users, client ids and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flowstone.cli.access.broker_requests import AnyBroker, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import finite
from flowstone.cli.common.text import screen_width, table
from flowstone.cluster.image.quota import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from flowstone.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

RATE_MAX = 2**63 - 1
DEFAULT_NAME = "default"
# The option of each quota.
KEYS = {
    "produce": PRODUCER_BYTE_RATE,
    "fetch": CONSUMER_BYTE_RATE,
    "request": REQUEST_PERCENTAGE,
    "mutations": CONTROLLER_MUTATION_RATE,
    "connections": CONNECTION_CREATION_RATE,
}
COLUMNS = ("who", *KEYS)

UserName = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without a quota of their own.")]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="The client id.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without a quota of their own.")
]
Address = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The client's IP address.")]
DefaultAddress = Annotated[bool, typer.Option("--default-ip", help="All addresses without a quota of their own.")]

_Entity = dict[str, str | None]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Set, list and remove quotas, which limit the rates of clients.", rich_markup_mode=None)
    group.command("set")(set_quota)
    group.command("list")(list_quotas)
    group.command("remove")(remove)
    app.add_typer(group, name="quota", no_args_is_help=True)


def _rate(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, min=0, max=RATE_MAX, callback=finite, help=text)


def set_quota(
    user: UserName = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Address = None,
    default_ip: DefaultAddress = False,
    produce: Annotated[float | None, _rate("BYTES", "Bytes per second that a client may send to a broker.")] = None,
    fetch: Annotated[float | None, _rate("BYTES", "Bytes per second that a client may fetch from a broker.")] = None,
    request: Annotated[float | None, _rate("PERCENT", "Percent of a broker's time for requests.")] = None,
    mutations: Annotated[float | None, _rate("N", "Partitions per second that a client may create or delete.")] = None,
    connections: Annotated[float | None, _rate("N", "Connections per second from an address (--ip).")] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. Quotas that are not named do not change."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    given = dict(zip(KEYS, (produce, fetch, request, mutations, connections), strict=True))
    values = {KEYS[option]: value for option, value in given.items() if value is not None}
    if not values:
        raise CommandError("which quota? Give one of --produce, --fetch, --request, --mutations, or --connections")
    ops = [AlterClientQuotasRequestOp(key=key, value=value) for key, value in values.items()]
    _alter(entity, ops, bootstrap)
    _print([(entity, values)], json_output)


def list_quotas(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print all quotas."""
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    check(answer.error_code, answer.error_message)
    found = [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in answer.entries or ()
    ]
    _print(sorted(found, key=lambda each: _named(each[0])), json_output)


def remove(
    user: UserName = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Address = None,
    default_ip: DefaultAddress = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove all quotas of a user, a client id, both together, or an address."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    if not yes:
        confirm(f"removing the quotas of {_named(entity)}")
    keys = [key for key in KEYS.values() if (key == CONNECTION_CREATION_RATE) == (IP in entity)]
    _alter(entity, [AlterClientQuotasRequestOp(key=key, remove=True) for key in keys], bootstrap)
    if json_output:
        print_document({"removed": entity})
    else:
        print(f"removed the quotas of {_named(entity)}")


def _alter(entity: _Entity, ops: list[AlterClientQuotasRequestOp], bootstrap: str) -> None:
    named = [AlterClientQuotasRequestEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntry(entity=named, ops=ops)])
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, AlterClientQuotasResponse)
    for each in answer.entries:
        check(each.error_code, each.error_message)


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> _Entity:
    entity: _Entity = {}
    for kind, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            raise CommandError(f"--{kind} and --default-{kind} exclude each other: give one of them")
        if name is not None or is_default:
            entity[kind] = name
    if not entity:
        raise CommandError("whose quota? Name a --user, --client-id or --ip, or --default-user and so on")
    return entity


def _named(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"{kind} {DEFAULT_NAME if name is None else name}" for kind, name in entity.items())


def _print(quotas: list[tuple[_Entity, dict[str, float]]], json_output: bool) -> None:
    if json_output:
        for entity, values in quotas:
            print_document({"entity": entity, "quotas": values})
    elif quotas:
        rows = [
            [_named(entity), *(f"{values[key]:.15g}" if key in values else "-" for key in KEYS.values())]
            for entity, values in quotas
        ]
        print(table(COLUMNS, rows, screen_width()))
