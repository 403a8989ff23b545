"""`flowstone secure init`: everything that a broker with encryption and logins needs, in one directory.

The admin's password is in `admin.password` and in `client.properties`, the broker's own in `server.properties`, keys
are in `ca.key` and `server.pem`: only their owner may read these files. `users.scram` has salted credentials. The
broker stores them when it first starts, so that no listener is ever open without a login.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Annotated

import typer

from flowstone.authentication.credential_files import format_credentials
from flowstone.authentication.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_text,
    salted_password,
)
from flowstone.broker.network.listeners import check_port, is_number
from flowstone.cli.access.user import ITERATIONS, SALT_RANDOM_BYTES
from flowstone.cli.common.clients import DEFAULT_PORT
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.config.properties import format_properties
from flowstone.ports.certificates import Authority
from flowstone.ports.secret_files import write_secret

ALWAYS_HOSTS = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::")
ALONE = "127.0.0.1"
HOST_CHARACTERS_MAX = 253
BROKER_USER = "flowstone-broker"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD_BYTES = 24
MECHANISM = ScramMechanism.SHA_512


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Set up encryption and logins.", rich_markup_mode=None)
    group.callback()(lambda: None)  # makes `init` a command of the group, though it is the only one
    group.command("init")(init)
    app.add_typer(group, name="secure", no_args_is_help=True)


def init(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty directory for the files.")],
    user: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the admin user, who has all permissions.")
    ] = "admin",
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address by which clients reach the broker; repeatable."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address to listen on: by default 0.0.0.0:9092 with --host, and 127.0.0.1:9092 without.",
        ),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Create certificates, an admin user, a server.properties for `flowstone up` and a client.properties."""
    hosts = list(dict.fromkeys(host or ()))
    address = _parsed(f"{EVERYWHERE[0] if hosts else ALONE}:{DEFAULT_PORT}" if listen is None else listen)
    _check(user, hosts)
    told = hosts[0] if hosts else "localhost"
    path = Path(directory).absolute()
    with system_errors(directory):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise CommandError(f"{directory} is not empty: name a new directory, so that no key is replaced")
        password = token_urlsafe(PASSWORD_BYTES)
        _write_certificates(path, [*ALWAYS_HOSTS, *hosts, *_own_name()])
        _write_server(path, user, password, address, told)
        token = token_urlsafe(PASSWORD_BYTES)
        write_secret(str(path / "http.tokens"), format_properties({user: token}))
        write_secret(str(path / "admin.password"), password + "\n")
        write_secret(str(path / "client.properties"), _client(path, user, password, token, f"{told}:{address[1]}"))
    if json_output:
        print_document({"directory": str(path), "user": user, "config": str(path / "server.properties")})
        return
    print(f"start the broker:  flowstone up --config {directory}/server.properties")
    print(f"use it:            flowstone topic list --config {directory}/client.properties")
    print(f"the password of {user} is in {directory}/admin.password")


def _parsed(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not is_number(port) or "://" in listen:
        raise CommandError(f"--listen {listen}: expected HOST:PORT")
    check_port("--listen", listen, port)
    return host.removeprefix("[").removesuffix("]") or EVERYWHERE[0], int(port)


def _check(user: str, hosts: Sequence[str]) -> None:
    if not user or len(user) > 255 or not user.isprintable() or any(each in user for each in ',;]["=\\ '):
        raise CommandError(f"--user {user!r}: use letters, digits, dots, dashes and underscores")
    for name in hosts:
        if not name or len(name) > HOST_CHARACTERS_MAX or not name.isascii() or not name.isprintable() or "/" in name:
            raise CommandError(f"--host {name!r} is not a host name or an address")


def _own_name() -> list[str]:
    name = platform.node()
    return [name] if name and name.isascii() and len(name) <= HOST_CHARACTERS_MAX else []


def _write_certificates(path: Path, hosts: Sequence[str]) -> None:
    authority = Authority.create("Flowstone CA")
    server = authority.issue("flowstone", list(dict.fromkeys(hosts)))
    (path / "ca.pem").write_text(authority.certificate, encoding="ascii")
    write_secret(str(path / "ca.key"), authority.certified.key)
    write_secret(str(path / "server.pem"), server.pem)


def _write_server(path: Path, user: str, password: str, address: tuple[str, int], told: str) -> None:
    own_password = token_urlsafe(PASSWORD_BYTES)
    credentials = {(user, MECHANISM): _credential(password), (BROKER_USER, MECHANISM): _credential(own_password)}
    write_secret(str(path / "users.scram"), format_credentials(credentials))
    host, port = address
    settings = {
        "listeners": f"SASL_SSL://{f'[{host}]' if ':' in host else host}:{port}",
        **({"advertised.listeners": f"SASL_SSL://{told}:{port}"} if host in EVERYWHERE else {}),
        "ssl.keystore.location": str(path / "server.pem"),
        "ssl.truststore.location": str(path / "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": MECHANISM.sasl_name,
        "sasl.jaas.config": _jaas(BROKER_USER, own_password),
        "scram.credentials.file": str(path / "users.scram"),
        "delegation.token.secret.key": token_urlsafe(PASSWORD_BYTES),
        "http.ssl.enable": "true",
        "http.tokens.file": str(path / "http.tokens"),
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": f"User:{user};User:{BROKER_USER}",
    }
    write_secret(str(path / "server.properties"), format_properties(settings))


def _client(path: Path, user: str, password: str, token: str, servers: str) -> str:
    return format_properties(
        {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM.sasl_name,
            "sasl.jaas.config": _jaas(user, password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(path / "ca.pem"),
            "http.token": token,
        }
    )


def _jaas(user: str, password: str) -> str:
    return f'{SCRAM_MODULE} required username="{user}" password="{password}";'


def _credential(password: str) -> ScramCredential:
    salt = salt_text(token_bytes(SALT_RANDOM_BYTES))
    return credential_of(MECHANISM, salted_password(MECHANISM, password, salt, ITERATIONS), salt, ITERATIONS)
