"""Who is heard by a port, tried with the addresses that this machine has."""

import socket
import sys
from collections.abc import Iterator

import pytest
from tests.networks import hears, other_addresses

from loopwright.distribute.strategy import accept_only_loopback, are_loopback

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters on sockets are Linux's")


@pytest.fixture
def port() -> Iterator[int]:
    """One that listens on every network, of both versions of IP, as TensorFlow's server does."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        yield server.getsockname()[1]


def test_this_machine_is_heard_by_both_versions_of_ip(port: int):
    assert accept_only_loopback(port)
    for address in ("127.0.0.1", "127.0.0.2", "::1"):
        assert hears(address, port)


@pytest.mark.skipif(not other_addresses(), reason="there is no other network here")
def test_whoever_comes_from_another_network_is_not(port: int):
    (address, *_) = other_addresses()
    assert hears(address, port)
    accept_only_loopback(port)
    assert not hears(address, port)


def test_a_port_that_nobody_listens_on_is_told(port: int):
    assert not accept_only_loopback(1)


def test_a_connection_that_was_accepted_goes_on(port: int):
    with socket.create_server(("127.0.0.1", 0)) as server:
        accept_only_loopback(server.getsockname()[1])
        with socket.create_connection(server.getsockname()) as here, server.accept()[0] as there:
            here.sendall(b"x" * 100_000)
            assert len(there.recv(100_000, socket.MSG_WAITALL)) == 100_000


@pytest.mark.parametrize(
    ("addresses", "is_so"),
    [
        (["127.0.0.1:1", "localhost:2", "[::1]:3"], True),
        (["127.0.0.1:1", "10.0.0.7:1"], False),
        (["localhost.example:1", "127.example:2"], False),
    ],
)
def test_addresses_of_this_machine_are_known(addresses: list[str], is_so: bool):
    assert are_loopback(addresses) is is_so
