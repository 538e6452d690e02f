"""A program: throws text at configs. Only typed errors, nothing run, nothing written.

    python -m tests.config.config_fuzz EXAMPLES

An audit hook cannot be taken off again: so it lives in a process of its own.
"""

import os
import sys
import time
from typing import Any

import hypothesis
import yaml
from hypothesis import strategies as st

from loopwright.config import file, plain_yaml
from loopwright.config.schema import Config, Fit
from loopwright.errors import ConfigurationError

FORBIDDEN = (
    "compile",
    "exec",
    "os.exec",
    "os.fork",
    "os.mkdir",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.symlink",
    "os.system",
    "pty.spawn",
    "socket.connect",
    "subprocess.Popen",
)
watching: set[str] = set()
heard: list[str] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event.startswith(FORBIDDEN):
        heard.append(f"{event} {arguments!r:.200}")
    if (
        event == "open"
        and isinstance(arguments[2], int)
        and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    ):
        heard.append(f"{event} {arguments!r:.200}")


KEYS = [*Config.model_fields, *Fit.model_fields, "name", "latest", "best", "learning_rate", "x"]
NASTY = [
    "${seed}",
    "${model.x}",
    "${",
    "!!python/object/apply:os.system [touch executed]",
    "__import__('os').system('touch executed')",
    "os:system",
    "mine:experiment",
    "../../../etc/passwd",
    "&a [*a, *a]",
    "1e999",
    "-.inf",
    "1 epoch",
    "0x10",
    "\ud7ff\x07",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*NASTY, "adam", "digits", "auto"])
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)
CONTENTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)
WORDS = st.lists(
    st.builds(
        "{}{}{}".format,
        st.lists(st.sampled_from([*KEYS, "0", "1"]), max_size=3).map(".".join),
        st.sampled_from(["=", "=", "=", "", ":"]),
        st.sampled_from(NASTY) | st.text(max_size=20) | st.integers().map(str),
    ),
    max_size=3,
)
ENVIRONMENTS = st.dictionaries(
    st.lists(st.sampled_from([key.upper() for key in KEYS]), max_size=3).map(
        lambda parts: "LOOPWRIGHT__" + "__".join(parts)
    ),
    st.sampled_from(NASTY) | st.text(max_size=20),
    max_size=2,
)
# Nearly all of these are configs: what is written of them has to be read back.
USABLE = st.fixed_dictionaries(
    {
        "task": st.just("digits"),
        "seed": st.integers(0, 9),
        "model": st.dictionaries(st.text(max_size=8), VALUES, max_size=4),
        "data": st.dictionaries(st.text(max_size=8), VALUES, max_size=4),
        "optimizer": st.fixed_dictionaries({"name": st.just("sgd"), "momentum": SCALARS}),
        "loss": st.fixed_dictionaries({"name": st.just("huber"), "delta": SCALARS}),
        "metrics": st.lists(st.sampled_from(["accuracy", "mae", "os:system"]), max_size=3),
    }
)
TEXTS = (
    st.text(max_size=200)
    | st.lists(
        st.sampled_from([*NASTY, "a:", "- ", "{", "}", "[", "]", "\n", "  ", "?", "|", "seed: 1"])
    ).map("".join)
    | (CONTENTS | USABLE).map(lambda content: yaml.safe_dump(content, allow_unicode=True))
)


def attempt(text: str, words: list[str], environment: dict[str, str]) -> None:
    told = None
    began = time.process_time()
    watching.add("now")
    try:
        content = plain_yaml.parse(text, name="It")
        config = file.from_content(content, words, environment=environment)
        assert file.from_content(plain_yaml.parse(file.to_yaml(config), name="It")) == config
    except ConfigurationError as error:
        told = str(error)
    finally:
        watching.clear()
    assert told is None or "do: " in told
    assert not heard, heard
    # Of its own time, not of the clock on the wall: the machine may be busy.
    assert time.process_time() - began < 1.0


def main(examples: int) -> None:
    sys.addaudithook(listen)
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 1000,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    settings(hypothesis.given(TEXTS, WORDS, ENVIRONMENTS)(attempt))()
    print(f"{examples} examples")


if __name__ == "__main__":
    main(int(sys.argv[1]))
