"""A consumer in a process of its own: sends prepared requests one after the other and reads each answer to its end.

Its own process, so that the test that measures a producer does not share an interpreter with it. Arguments: host, port,
a file of framed requests. Prints the number of bytes read.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

BUFFER_BYTES = 1 << 20


def main(host: str, port: str, path: str) -> None:
    requests = Path(path).read_bytes()
    buffer = bytearray(BUFFER_BYTES)
    read_bytes = at = 0
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        while at < len(requests):
            end = at + 4 + struct.unpack_from(">i", requests, at)[0]
            connection.sendall(requests[at:end])
            at = end
            connection.recv_into(buffer, 4, socket.MSG_WAITALL)
            (left,) = struct.unpack_from(">i", buffer)
            read_bytes += left
            while left:
                count = connection.recv_into(buffer, min(left, BUFFER_BYTES))
                if not count:
                    raise ConnectionError("the broker closed the connection")
                left -= count
    print(read_bytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
