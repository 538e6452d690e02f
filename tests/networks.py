"""Which networks this machine is in, and who is heard by a port."""

import fcntl
import socket
import struct


def other_addresses() -> list[str]:
    """What this machine is called in other networks than loopback."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def hears(address: str, port: int) -> bool:
    """Whether somebody who comes by this address gets a connection."""
    try:
        socket.create_connection((address, port), timeout=0.5).close()
    except TimeoutError:
        return False
    return True
