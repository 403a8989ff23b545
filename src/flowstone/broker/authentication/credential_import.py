"""Stores the credentials of `scram.credentials.file` when a broker starts, for users whom the cluster does not know.

So the first user exists before the first connection is accepted, and no listener has to be open without a login. A
user whose password was changed or who was removed since keeps that: the import is of unknown users only, and a removed
user must be removed from the file too.
"""

from __future__ import annotations

import logging
from secrets import token_bytes

from flowstone.authentication.credential_files import parse_credentials
from flowstone.cluster.decisions.scram_changes import import_credentials
from flowstone.cluster.metadata import Metadata
from flowstone.errors import StartupError
from flowstone.ports.secret_files import read_secret

logger = logging.getLogger(__name__)


async def import_users(path: str, metadata: Metadata) -> None:
    """Store the credentials in the file, if one is set. Raises StartupError or ConfigError if it is unusable."""
    if not path:
        return
    try:
        text = read_secret(path)
    except PermissionError as error:
        raise StartupError(f"scram.credentials.file: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StartupError(f"scram.credentials.file: {path} cannot be read: {reason}") from None
    found = parse_credentials(text, path)
    users = await metadata.change(lambda image: import_credentials(image, found, token_bytes))
    if users:
        logger.info("stored the credentials of %s from %s", ", ".join(users), path)
