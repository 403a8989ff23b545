"""The settings of a schema registry: its URL, and the options of a format, named as Confluent's clients have them.

The password is in the option `basic.auth.user.info`, in the URL, or, so that no file holds it, in the environment
variable FLOWSTONE_REGISTRY_AUTH of the driver. It is never part of a message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import Format

AUTH_VARIABLE = "FLOWSTONE_REGISTRY_AUTH"
AUTH, TIMEOUT_MS, SUBJECT, VERSION, REGISTER = (
    "basic.auth.user.info",
    "request.timeout.ms",
    "subject",
    "version",
    "auto.register.schemas",
)
OPTIONS = (AUTH, TIMEOUT_MS, SUBJECT, VERSION, REGISTER)
TIMEOUT_MS_DEFAULT = 5_000
TIMEOUT_MS_MAX = 60_000


@dataclass(frozen=True)
class RegistrySettings:
    url: str  # without user and password
    auth: str = field(default="", repr=False)  # user:password
    timeout_s: float = TIMEOUT_MS_DEFAULT / 1000


@dataclass(frozen=True)
class SchemaChoice:
    """The registry's schema with which a source reads, or the subject under which a sink registers its schema."""

    subject: str
    version: str = "latest"
    register: bool = True


def settings_of(format: Format) -> RegistrySettings:
    """Return the settings of a format's registry. Raises PipelineError if its URL or an option is malformed."""
    refuse_unknown(format)
    parts = urlsplit(format.registry)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PipelineError("registry is not a URL like http://localhost:8081")
    in_url = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else ""
    auth = in_url or format.options.get(AUTH, "") or os.environ.get(AUTH_VARIABLE, "")
    if auth and ":" not in auth:
        raise PipelineError(f"{AUTH} (or {AUTH_VARIABLE}) is not of the form user:password")
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return RegistrySettings(url, auth, _timeout_ms(format) / 1000)


def _timeout_ms(format: Format) -> int:
    text = format.options.get(TIMEOUT_MS, str(TIMEOUT_MS_DEFAULT))
    if not text.isdecimal() or not 1 <= int(text) <= TIMEOUT_MS_MAX:
        raise PipelineError(f"{TIMEOUT_MS} is {text}, and should be a number from 1 to {TIMEOUT_MS_MAX}")
    return int(text)


def choice_of(format: Format, subject: str) -> SchemaChoice:
    """Return what the options choose; `subject` is the default. Raises PipelineError if there is no subject."""
    chosen = format.options.get(SUBJECT, subject)
    if not chosen:
        raise PipelineError(
            f"the schema comes from the registry, and it is not clear under which subject: "
            f'give the option {SUBJECT}, as in "orders-value", or a schema'
        )
    version = format.options.get(VERSION, "latest")
    if version != "latest" and not (version.isdecimal() and int(version) > 0):
        raise PipelineError(f"{VERSION} is {version}, and should be a number or latest")
    register = format.options.get(REGISTER, "true").lower()
    if register not in ("true", "false"):
        raise PipelineError(f"{REGISTER} is {register}, and should be true or false")
    return SchemaChoice(chosen, version, register == "true")


def refuse_unknown(format: Format) -> None:
    """Raise PipelineError for options that the format does not have."""
    known = OPTIONS if format.registry else ()
    unknown = sorted(set(format.options) - set(known))
    if unknown:
        possible = f"; possible are {', '.join(known)}" if known else ""
        raise PipelineError(f"the format {format.kind} has no option {unknown[0]}{possible}")
