"""`flowstone user`: adds, lists and removes users who log in with a password (SCRAM)."""

from __future__ import annotations

import sys
from secrets import token_bytes
from typing import Annotated

import typer

from flowstone.authentication.scram import MECHANISMS, ScramMechanism, salt_text, salted_password
from flowstone.cli.access.broker_requests import AnyBroker, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUserName,
    DescribeUserScramCredentialsResponse,
)

ITERATIONS = 8192
PASSWORD_CHARACTERS_MAX = 1024
SALT_RANDOM_BYTES = 64

UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Mechanism = Annotated[
    str, typer.Option(metavar="MECHANISM", help="SCRAM-SHA-256 or SCRAM-SHA-512, with which the user logs in.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Manage users who log in with a password.", rich_markup_mode=None)
    group.command("add")(add)
    group.command("list")(list_users)
    group.command("remove")(remove)
    app.add_typer(group, name="user", no_args_is_help=True)


def add(
    name: UserName,
    password: Annotated[
        str | None,
        typer.Option(metavar="PASSWORD", help="The password. Other users of this machine may see it; - reads a line."),
    ] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the password, in its first line.")
    ] = None,
    mechanism: Mechanism = "SCRAM-SHA-512",
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add a user, or change a user's password. Existing connections of the user stay open."""
    chosen = _mechanism(mechanism)
    secret = _password(password, password_file)
    salt = salt_text(token_bytes(SALT_RANDOM_BYTES))
    upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=name,
        mechanism=chosen,
        iterations=ITERATIONS,
        salt=salt,
        salted_password=salted_password(chosen, secret, salt, ITERATIONS),
    )
    _alter(bootstrap, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))
    if json_output:
        print_document({"user": name, "mechanism": chosen.sasl_name})
    else:
        print(f"{name} can log in with {chosen.sasl_name}")


def list_users(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the users and the mechanisms with which they log in."""
    users = {name: [each.sasl_name for each in mechanisms] for name, mechanisms in _described(bootstrap, None).items()}
    if json_output:
        print_document({"users": [{"user": name, "mechanisms": found} for name, found in users.items()]})
        return
    rows = [(name, ", ".join(found)) for name, found in users.items()]
    print(table(("user", "mechanisms"), rows, screen_width()) if rows else "there are no users")


def remove(
    name: UserName, yes: Yes = False, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Remove a user, who can then no longer log in. Existing connections of the user stay open."""
    mechanisms = _described(bootstrap, name).get(name, [])
    if not mechanisms:
        raise CommandError(f"there is no user {name}; see `flowstone user list`")
    if not yes:
        confirm(f"{name} can log in no more")
    deletions = [
        AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=each) for each in mechanisms
    ]
    _alter(bootstrap, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]))
    if json_output:
        print_document({"user": name, "removed": True})
    else:
        print(f"{name} is removed")


def _mechanism(text: str) -> ScramMechanism:
    found = MECHANISMS.get(text.upper())
    if found is None:
        raise CommandError(f"--mechanism {text}: choose {' or '.join(MECHANISMS)}")
    return found


def _password(password: str | None, path: str | None) -> str:
    if password is not None and path is not None:
        raise CommandError("--password and --password-file: name one of them, not both")
    if path is not None:
        with system_errors(path), open(path, encoding="utf-8", errors="replace") as file:
            password = file.readline().rstrip("\r\n")
    elif password == "-":
        password = sys.stdin.readline().rstrip("\r\n")
    elif password is None:
        if not sys.stdin.isatty():
            raise CommandError("which password? Give it with --password, --password-file, or --password - on a line")
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not password or len(password) > PASSWORD_CHARACTERS_MAX:
        raise CommandError(f"the password must have 1 to {PASSWORD_CHARACTERS_MAX} characters")
    return password


def _described(bootstrap: str, name: str | None) -> dict[str, list[ScramMechanism]]:
    users = None if name is None else [DescribeUserScramCredentialsRequestUserName(name=name)]
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(DescribeUserScramCredentialsRequest(users=users), DescribeUserScramCredentialsResponse)
    check(answer.error_code, answer.error_message)
    return {
        each.user: [ScramMechanism(info.mechanism) for info in each.credential_infos]
        for each in answer.results
        if not each.error_code
    }


def _alter(bootstrap: str, request: AlterUserScramCredentialsRequest) -> None:
    with AnyBroker(bootstrap) as broker:
        answer = broker.ask(request, AlterUserScramCredentialsResponse)
    for each in answer.results:
        check(each.error_code, each.error_message)
