"""Kafka's `sasl.jaas.config`: a login module's name, `required`, and options; only the options matter here.

No class is loaded: the names of login modules are compared with the known ones, and any other is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from flowstone.errors import ConfigError

_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_SHADED = re.compile(r"^(kafkashaded|shadedkafka)\.")
_FLAGS = ("required", "requisite", "sufficient", "optional")
_OPTION = re.compile(r"""\s+(?P<name>[^\s=";]+)\s*=\s*(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^\s";]+))""")
_USER_PREFIX = "user_"


class JaasConfig(NamedTuple):
    """The options of one login module."""

    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasConfig({', '.join(self.options)})"

    @property
    def username(self) -> str:
        return self.options.get("username", "")

    @property
    def password(self) -> str:
        return self.options.get("password", "")

    @property
    def users(self) -> dict[str, str]:
        """The passwords of users by name, as the server's PLAIN module names them."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX)
        }


NO_JAAS_CONFIG = JaasConfig({})


def parse_jaas(text: str, setting: str = "sasl.jaas.config") -> JaasConfig:
    """Return the options. Raises ConfigError, which does not repeat the text, if it is malformed."""
    text = text.strip()
    if not text:
        return NO_JAAS_CONFIG
    module, flag, rest = (*text.split(None, 2), "", "")[:3]
    if _SHADED.sub("", module) not in _MODULES:
        raise ConfigError(f"{setting}: the login module must be one of {', '.join(sorted(_MODULES))}")
    if flag.rstrip(";") not in _FLAGS:
        raise ConfigError(f"{setting}: expected `required` after the login module")
    if flag.endswith(";"):
        return NO_JAAS_CONFIG
    rest = " " + rest.strip()
    options: dict[str, str] = {}
    at = 0
    while (match := _OPTION.match(rest, at)) is not None:
        quoted, bare = match["quoted"], match["bare"]
        options[match["name"]] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = match.end()
    if rest[at:].strip() != ";":
        raise ConfigError(
            f'{setting}: expected options such as username="alice" password="…" after the login module, and ; at the '
            f"end; it is malformed after option {len(options)}"
        )
    return JaasConfig(options)
