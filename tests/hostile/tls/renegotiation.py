"""A client that asks for a renegotiation in TLS 1.2, which Python's ssl cannot: OpenSSL's own functions.

A program such as `openssl s_client` could do it too, but starting it takes many times the processor time of a
handshake: a test would measure how busy the machine is with that, and not what the attack does to the broker.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from functools import cache
from typing import Any

TIMEOUT_S = 10.0
_SET_MAX_PROTOCOL_VERSION, _TLS_1_2 = 124, 0x0303
_NO_RENEGOTIATION = 0x0A000153 & 0xFFF  # SSL_R_NO_RENEGOTIATION
_REASON_MASK = 0xFFF


@cache
def libssl() -> Any:
    """Return OpenSSL's library, or None if there is none."""
    name = ctypes.util.find_library("ssl")
    if name is None:
        return None
    library = ctypes.CDLL(name)
    pointers = ("TLS_client_method", "SSL_CTX_new", "SSL_new")
    for function in pointers:
        getattr(library, function).restype = ctypes.c_void_p
    library.ERR_get_error.restype = ctypes.c_ulong
    return library


@cache
def _context() -> ctypes.c_void_p:
    library = libssl()
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    assert library.SSL_CTX_ctrl(context, _SET_MAX_PROTOCOL_VERSION, ctypes.c_long(_TLS_1_2), None) == 1
    return context


def is_renegotiation_refused(address: tuple[str, int]) -> bool:
    """Complete a handshake, ask for another, and return whether the server refuses that."""
    library = libssl()
    connection = socket.create_connection(address, TIMEOUT_S)
    connection.settimeout(None)  # OpenSSL reads from the descriptor
    tls = ctypes.c_void_p(library.SSL_new(_context()))
    try:
        library.SSL_set_fd(tls, connection.fileno())
        assert library.SSL_connect(tls) == 1, "the first handshake failed"
        assert library.SSL_renegotiate(tls) == 1
        library.ERR_clear_error()
        is_done = library.SSL_do_handshake(tls) == 1 and not library.SSL_renegotiate_pending(tls)
        return not is_done and library.ERR_get_error() & _REASON_MASK == _NO_RENEGOTIATION
    finally:
        library.SSL_free(tls)
        connection.close()
