"""Files of SCRAM credentials: one user and mechanism a line, in the form of Kafka's `--add-scram` with stored keys.

    SCRAM-SHA-512=[name=admin,iterations=8192,salt="…",storedkey="…",serverkey="…"]

Binary values are base64. Empty lines and lines that begin with # are skipped.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping

from flowstone.authentication.scram import ITERATIONS_MIN, MECHANISMS, ScramCredential, ScramMechanism
from flowstone.errors import ConfigError

Credentials = dict[tuple[str, ScramMechanism], ScramCredential]

_LINE = re.compile(
    r'(?P<mechanism>[A-Z0-9-]+)=\[name=(?P<name>[^,\]"]+),iterations=(?P<iterations>\d{1,9}),salt="(?P<salt>[^"]*)",'
    r'storedkey="(?P<stored_key>[^"]*)",serverkey="(?P<server_key>[^"]*)"\]'
)


def format_credentials(credentials: Mapping[tuple[str, ScramMechanism], ScramCredential]) -> str:
    """Return the text of a file. User names must not contain commas, brackets or quotes."""
    lines = []
    for (user, mechanism), (salt, stored_key, server_key, iterations) in credentials.items():
        values = (("salt", salt), ("storedkey", stored_key), ("serverkey", server_key))
        encoded = ",".join(f'{name}="{b64encode(value).decode()}"' for name, value in values)
        lines.append(f"{mechanism.sasl_name}=[name={user},iterations={iterations},{encoded}]\n")
    return "".join(lines)


def parse_credentials(text: str, source: str) -> Credentials:
    """Return the credentials. Raises ConfigError, which repeats none of them, if a line is malformed."""
    found: Credentials = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        mechanism = MECHANISMS.get(match["mechanism"]) if match else None
        if match is None or mechanism is None or int(match["iterations"]) < ITERATIONS_MIN:
            raise ConfigError(
                f"{source}, line {number}: this is not a SCRAM credential as `flowstone secure init` writes it"
            )
        try:
            keys = [b64decode(match[name], validate=True) for name in ("salt", "stored_key", "server_key")]
        except ValueError:
            raise ConfigError(f"{source}, line {number}: a value is not base64") from None
        if not keys[0] or any(len(key) != mechanism.key_bytes for key in keys[1:]):
            raise ConfigError(f"{source}, line {number}: a key does not have the length of the mechanism's keys")
        found[match["name"], mechanism] = ScramCredential(keys[0], keys[1], keys[2], int(match["iterations"]))
    return found
