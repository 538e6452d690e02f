"""The strategy that a word stands for; what is refused before anybody waits for anybody."""

import socket
import sys
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored
from tests.networks import hears, other_addresses

import loopwright as lw
from loopwright.distribute import cluster, replicas
from loopwright.distribute.strategy import accept_only_loopback, are_loopback, strategy_for
from loopwright.errors import ConfigurationError, WorkerLostError


def test_without_other_workers_auto_is_one_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert strategy_for("auto") is tf.distribute.get_strategy()
    assert strategy_for("none") is tf.distribute.get_strategy()
    assert strategy_for(None) is tf.distribute.get_strategy()


def test_a_strategy_is_taken_as_it_is():
    assert strategy_for(mirrored()) is mirrored()


def test_a_word_that_is_no_strategy_is_refused():
    with pytest.raises(ConfigurationError, match="'auto' or 'none' or 'mirrored'"):
        strategy_for("several")


def test_several_workers_need_somebody_who_tells_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match="loopwright launch --workers 2"):
        strategy_for("multi_worker")


def test_workers_that_come_too_late_are_told_to_make_the_trainer_first(
    monkeypatch: pytest.MonkeyPatch,
):
    tf.constant(1.0)  # TensorFlow is in use
    monkeypatch.setenv("TF_CONFIG", cluster.tf_config(["127.0.0.1:1", "127.0.0.1:2"], 0))
    with pytest.raises(ConfigurationError, match="too late to connect") as refusal:
        lw.Trainer(keras.Model, strategy="auto")
    assert 'Trainer(make_task, strategy="auto")' in str(refusal.value)


def test_a_lost_worker_ends_a_program_with_a_code_that_supervisors_retry():
    lost = WorkerLostError("gone")
    assert isinstance(lost, SystemExit)
    assert isinstance(lost, lw.LoopwrightError)
    assert (lost.code, str(lost)) == (193, "gone")


def test_what_replicas_kept_for_themselves_is_shared_out_among_more_and_fewer():
    kinds = tf.VariableAggregation
    saved = {f"{name}.replicas[{i}]": tf.constant(i + 1.0) for name in "abc" for i in (0, 1)}
    now = {"a": kinds.SUM, "b": kinds.MEAN, "c": kinds.NONE}
    alone = {name: tf.Variable(0.0, aggregation=kind) for name, kind in now.items()}
    three = {f"{n}.replicas[{i}]": v for n, v in alone.items() for i in range(3)}
    fewer, more = replicas.shared_out(saved, alone), replicas.shared_out(saved, three)
    assert [float(fewer[name]) for name in "abc"] == [3.0, 1.5, 1.0]
    shared = [[float(more[f"{name}.replicas[{i}]"]) for i in range(3)] for name in "abc"]
    np.testing.assert_array_equal(shared, [[3.0, 0.0, 0.0], [1.5] * 3, [1.0] * 3])
    again = replicas.shared_out(saved, {name: alone[name[0]] for name in saved})
    assert all(float(again[name]) == float(saved[name]) for name in saved)


# --- who is heard by a port, tried with the addresses that this machine has ---------------------

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="filters on sockets are Linux's")


@pytest.fixture
def port() -> Iterator[int]:
    """One that listens on every network, of both versions of IP, as TensorFlow's server does."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        yield server.getsockname()[1]


@on_linux
def test_this_machine_is_heard_by_both_versions_of_ip(port: int):
    assert accept_only_loopback(port)
    for address in ("127.0.0.1", "127.0.0.2", "::1"):
        assert hears(address, port)


@pytest.mark.skipif(not other_addresses(), reason="there is no other network here")
@on_linux
def test_whoever_comes_from_another_network_is_not(port: int):
    (address, *_) = other_addresses()
    assert hears(address, port)
    accept_only_loopback(port)
    assert not hears(address, port)


@on_linux
def test_a_port_that_nobody_listens_on_is_told(port: int):
    assert not accept_only_loopback(1)


@on_linux
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
