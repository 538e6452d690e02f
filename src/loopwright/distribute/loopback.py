"""Loopback: ports on which this process listens to this machine alone.

TensorFlow's server listens on every network and cannot be told otherwise. The kernel can: a filter
on the listening socket drops what comes from another machine before anybody hears of it.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which the socket module does not name
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: a packet's header of IP stands before this
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_LOAD_BYTE, _LOAD_WORD, _IF_EQUAL, _SHIFT_RIGHT, _RETURN = 0x30, 0x20, 0x15, 0x74, 0x06

# Operation, how many to pass over if it is so and if not, value.
_FILTER: Sequence[tuple[int, int, int, int]] = (
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
    (_SHIFT_RIGHT, 0, 0, 4),
    (_IF_EQUAL, 0, 2, 4),  # IP version 4: the source begins with 127
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 12),
    (_IF_EQUAL, 8, 9, 127),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),  # version 6: the source is ::1
    (_IF_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
    (_IF_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 16),
    (_IF_EQUAL, 0, 3, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 20),
    (_IF_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, _ACCEPT),
    (_RETURN, 0, 0, _DROP),
)


def are_of_this_machine(addresses: Sequence[str]) -> bool:
    """Whether nobody else can be meant by these addresses.

    >>> are_of_this_machine(["127.0.0.1:20000", "localhost:20001"])
    True
    >>> are_of_this_machine(["127.0.0.1:20000", "node9:20000"])
    False
    """
    return all(map(_is_loopback, addresses))


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen_to_this_machine(port: int) -> bool:
    """Drops what other machines send to a port that this process listens on; whether it could."""
    if not sys.platform.startswith("linux"):
        return False
    code = b"".join(struct.pack("HBBI", *line) for line in _FILTER)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(held))
    listening = list(_listening(port))
    for each in listening:
        with each:
            each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    return bool(listening)


def _listening(port: int) -> Iterator[socket.socket]:
    """Copies of this process' listening sockets of a port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and found.getsockname()[1] == port:
                yield found
            else:
                found.close()
