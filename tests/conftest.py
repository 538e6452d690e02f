"""Police: a test that leaves the process changed fails. And four CPU devices for strategies.

The checks are hooks and not fixtures, so that they come before and after every fixture, also
`monkeypatch` and those of the conftest above.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# The machine may be busy: how long an example takes says nothing about it.
hypothesis.settings.register_profile("loopwright", deadline=None, database=None)
hypothesis.settings.load_profile("loopwright")
# `make test` tries fewer examples of each property; `make test-all` the usual hundred.
hypothesis.settings.register_profile(
    "quick", parent=hypothesis.settings.get_profile("loopwright"), max_examples=40
)


@dataclass(frozen=True)
class Process:
    """What a test has to leave as it found it."""

    environment: Mapping[str, str]
    directory: str
    handlers: Mapping[int, Any]  # without SIGALRM, which pytest-timeout sets and unsets
    threads: frozenset[threading.Thread]
    tensorflow_imported: bool
    keras: Mapping[str, Any] | None


BEFORE = pytest.StashKey[Process]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[BEFORE] = _look()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    before = item.stash[BEFORE]
    left = _left_behind(before, _look())
    if left:
        _put_back(before)  # the tests after this one are not to blame
        pytest.fail("the test left behind:\n" + "\n".join(left), pytrace=False)


def pytest_collection_finish() -> None:
    """Four CPU devices, if any collected module uses TensorFlow; pure tests never import it."""
    if "tensorflow" not in sys.modules:
        return
    gc.freeze()  # a million objects of TensorFlow that no collection has to look at
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 4
        )
    except RuntimeError as error:
        raise pytest.UsageError(
            "A test module makes tensors, variables or models while it is imported. "
            "Make them inside tests or fixtures: the devices are set up after the imports."
        ) from error


def _look() -> Process:
    environment = dict(os.environ)
    environment.pop("PYTEST_CURRENT_TEST", None)
    return Process(
        environment=environment,
        directory=os.getcwd(),
        handlers={n: signal.getsignal(n) for n in signal.valid_signals() - {signal.SIGALRM}},
        threads=frozenset(t for t in threading.enumerate() if not t.daemon),
        tensorflow_imported="tensorflow" in sys.modules,
        keras=_keras_globals(),
    )


def _keras_globals() -> dict[str, Any] | None:
    keras = sys.modules.get("keras")
    if keras is None:
        return None
    return {
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
        "dtype_policy": keras.config.dtype_policy().name,
    }


def _left_behind(before: Process, now: Process) -> list[str]:
    left: list[str] = []
    # Importing TensorFlow sets variables: that is its doing.
    if now.tensorflow_imported == before.tensorflow_imported:
        left += _differences("environment variable", before.environment, now.environment)
    if now.directory != before.directory:
        left.append(f"  working directory: {before.directory} -> {now.directory}")
    left += _differences("signal handler", before.handlers, now.handlers)
    if before.keras is not None and now.keras is not None:
        left += _differences("keras.config", before.keras, now.keras)
    for thread in now.threads - before.threads:
        thread.join(timeout=1.0)  # it may be on its way out
        if thread.is_alive():
            left.append(f"  thread: {thread.name}")
    return left


def _differences(kind: str, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[str]:
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return [f"  {kind} {name!s}: {before.get(name)!r} -> {now.get(name)!r}" for name in names]


def _put_back(before: Process) -> None:
    for name in set(os.environ) - set(before.environment) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before.environment)
    os.chdir(before.directory)
    for number, handler in before.handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    if before.keras is not None:
        keras = sys.modules["keras"]
        keras.config.set_floatx(before.keras["floatx"])
        keras.config.set_epsilon(before.keras["epsilon"])
        keras.config.set_image_data_format(before.keras["image_data_format"])
        keras.config.set_dtype_policy(before.keras["dtype_policy"])


@pytest.fixture
def mount(tmp_path: Path) -> Generator[Callable[[str], Path]]:
    """Mounts a file system of its own with these options."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = 0

    def on_place(options: str) -> Path:
        nonlocal mounted
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
        mounted += 1
        return place

    yield on_place
    for _ in range(mounted):
        subprocess.run(["umount", "-l", str(place)], check=True)
