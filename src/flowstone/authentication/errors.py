"""The error of a login that is refused."""

from __future__ import annotations


class LoginRefused(Exception):
    """The client may not log in. The reason is for the broker's logs: clients are told one text for all causes."""
