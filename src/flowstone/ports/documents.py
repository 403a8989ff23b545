"""Small documents by URL: `file:`, `http:` and `https:`. Blocking; callers use a worker thread."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, url2pathname

TIMEOUT_S = 5.0


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: they may lead from a trusted address to any other."""

    def redirect_request(self, *_: object) -> None:
        return None


def read_document(url: str, bytes_max: int) -> bytes:
    """Return the document's bytes. Raises OSError if it cannot be read, and ValueError if it is too long."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(url2pathname(parts.path), "rb") as file:
            data = file.read(bytes_max + 1)
    else:
        request = Request(url, headers={"Accept": "application/json"})
        with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as response:
            data = response.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"the document is longer than {bytes_max} bytes")
    return bytes(data)
