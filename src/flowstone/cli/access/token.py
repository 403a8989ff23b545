"""`flowstone token`: creates, lists, renews and expires delegation tokens.

A token's password is printed only by `create`, or written to a file that only its owner may read.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flowstone.authentication.scram import MECHANISMS
from flowstone.cli.access.broker_requests import AnyBroker, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.cli.common.times import format_time
from flowstone.client.security import ClientSecurity, default_security
from flowstone.config.properties import format_properties
from flowstone.errors import ErrorCode
from flowstone.ports.secret_files import write_secret
from flowstone.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenRequestDescribeDelegationTokenOwner,
    DescribeDelegationTokenResponse,
    DescribeDelegationTokenResponseDescribedDelegationToken,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

USER = "User"
LONGEST = AT_ONCE = -1
HOUR_MS = 3_600_000
HOURS_MAX = 24 * 3650
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
COLUMNS = ("token", "owner", "created by", "renewers", "expires", "not after")
REASONS = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "it has no delegation.token.secret.key, so there are no tokens",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "there is no such token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only a token's owner and its renewers may do this",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "tokens need a login with a password or a certificate, and not "
    "one with a token: name the file of such a login with --config",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "a token for another user needs the operation create-tokens on "
    "that user",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the token has expired",
}

Described = DescribeDelegationTokenResponseDescribedDelegationToken
TokenId = Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage delegation tokens, with which others log in as a user.", rich_markup_mode=None)
    group.command("create")(create)
    group.command("list")(list_tokens)
    group.command("renew")(renew)
    group.command("expire")(expire)
    app.add_typer(group, name="token", no_args_is_help=True)


def create(
    owner: Annotated[
        str, typer.Option(metavar="USER", help="The user as whom the token logs in; default: yourself.")
    ] = "",
    renewer: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Another user who may renew the token; repeatable.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="How long it can be renewed; default: as long as the broker allows.")
    ] = None,
    properties: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a client's properties with the token to this new file.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a delegation token, a login that expires by itself."""
    request = CreateDelegationTokenRequest(
        owner_principal_type=USER if owner else None,
        owner_principal_name=owner or None,
        renewers=[
            CreateDelegationTokenRequestCreatableRenewers(principal_type=USER, principal_name=each)
            for each in renewer or ()
        ],
        max_lifetime_ms=LONGEST if hours is None else _milliseconds(hours),
    )
    if properties is not None and Path(properties).exists():  # otherwise there would be a token that nobody can use
        raise CommandError(f"{properties} exists already: name a new file with --properties")
    with AnyBroker(bootstrap) as broker:
        token = broker.ask(request, CreateDelegationTokenResponse)
    _check(token.error_code)
    password = b64encode(token.hmac).decode()
    if properties is not None:
        text = format_properties(_client(default_security(), bootstrap, token.token_id, password))
        with system_errors(properties):
            write_secret(properties, text)
    document: dict[str, Any] = {
        "token": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "expires_ms": token.expiry_timestamp_ms,
        "not_after_ms": token.max_timestamp_ms,
    }
    if json_output:
        print_document(document if properties is not None else {**document, "password": password})
        return
    print(f"token {token.token_id} of {token.principal_name} expires {format_time(token.expiry_timestamp_ms)}")
    print(f"log in with the file {properties}" if properties is not None else f"its password is {password}")


def list_tokens(
    owner: Annotated[str, typer.Option(metavar="USER", help="Only tokens that this user owns or may renew.")] = "",
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the tokens that you may see, without their passwords."""
    tokens = _described(bootstrap, owner)
    if json_output:
        print_document({"tokens": [_document(token) for token in tokens]})
        return
    rows = [tuple(map(str, _row(token))) for token in tokens]
    print(table(COLUMNS, rows, screen_width()) if rows else "there are no tokens that you may see")


def renew(
    token: TokenId,
    hours: Annotated[
        float | None,
        typer.Option(help="Hours from now until the token expires; default: as long as the broker allows."),
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Extend the time until a token expires."""
    period_ms = LONGEST if hours is None else _milliseconds(hours)
    request = RenewDelegationTokenRequest(hmac=_hmac(bootstrap, token), renew_period_ms=period_ms)
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, RenewDelegationTokenResponse)
    _check(answer.error_code)
    _print_expiry(token, answer.expiry_timestamp_ms, json_output)


def expire(
    token: TokenId,
    hours: Annotated[
        float | None, typer.Option(help="Hours from now until the token expires; default: at once.")
    ] = None,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Expire a token at once, or after --hours."""
    period_ms = AT_ONCE if hours is None else _milliseconds(hours)
    token_hmac = _hmac(bootstrap, token)
    if hours is None and not yes:
        confirm(f"nobody can log in with the token {token} any more")
    request = ExpireDelegationTokenRequest(hmac=token_hmac, expiry_time_period_ms=period_ms)
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, ExpireDelegationTokenResponse)
    _check(answer.error_code)
    _print_expiry(token, answer.expiry_timestamp_ms, json_output)


def _milliseconds(hours: float) -> int:
    if not 0 < hours <= HOURS_MAX:
        raise CommandError(f"--hours {hours}: expected more than 0 and at most {HOURS_MAX}")
    return max(int(hours * HOUR_MS), 1)


def _check(code: int) -> None:
    check(code, REASONS.get(ErrorCode(code)))


def _described(bootstrap: str, owner: str = "") -> list[Described]:
    owners = None
    if owner:
        owners = [DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type=USER, principal_name=owner)]
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(DescribeDelegationTokenRequest(owners=owners), DescribeDelegationTokenResponse)
    _check(answer.error_code)
    return sorted(answer.tokens, key=lambda token: (token.principal_name, token.issue_timestamp))


def _hmac(bootstrap: str, token_id: str) -> bytes:
    for token in _described(bootstrap):
        if token.token_id == token_id:
            return bytes(token.hmac)
    raise CommandError(f"there is no token {token_id} that you may see; see `flowstone token list`")


def _document(token: Described) -> dict[str, Any]:
    return {
        "token": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "requester": f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
        "renewers": [f"{each.principal_type}:{each.principal_name}" for each in token.renewers],
        "issued_ms": token.issue_timestamp,
        "expires_ms": token.expiry_timestamp,
        "not_after_ms": token.max_timestamp,
    }


def _row(token: Described) -> tuple[Any, ...]:
    return (
        token.token_id,
        token.principal_name,
        token.token_requester_principal_name,
        ", ".join(each.principal_name for each in token.renewers) or "-",
        format_time(token.expiry_timestamp),
        format_time(token.max_timestamp),
    )


def _print_expiry(token: str, expires_ms: int, json_output: bool) -> None:
    if json_output:
        print_document({"token": token, "expires_ms": expires_ms})
    else:
        print(f"token {token} expires {format_time(expires_ms)}")


def _client(security: ClientSecurity, bootstrap: str, token_id: str, password: str) -> Mapping[str, str]:
    """Return the properties of a client that connects like this one and logs in with the token."""
    mechanism = security.mechanism if security.mechanism in MECHANISMS else "SCRAM-SHA-512"
    login = f'{SCRAM_MODULE} required username="{token_id}" password="{password}" tokenauth="true";'
    found = {
        "bootstrap.servers": str(bootstrap),
        "security.protocol": "SASL_SSL" if security.has_tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login,
    }
    if security.pem.has_trust:
        found["ssl.truststore.type"] = "PEM"
        found[security.pem.trust_setting] = security.pem.truststore_location or security.pem.trusted_certificates
    if not security.checks_host:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found
