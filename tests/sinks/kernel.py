"""A real kernel of a notebook for tests: cells are executed, interrupted, executed again."""

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import pytest


@final
class Kernel:
    """Executes cells, and keeps their outputs as a notebook would."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client
        self.updates = 0
        """How often an output of the last cell was replaced."""

    def run(
        self, code: str, *, interrupt_when: Callable[[list[Any]], bool] | None = None
    ) -> list[Any]:
        """Return the outputs of a cell; interrupt it once, when its outputs satisfy a condition."""
        asked, self.updates = self._client.execute(code), 0
        outputs = list[Any]()
        until = time.monotonic() + 200
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                message = self._client.get_iopub_msg(timeout=0.2)
                if message["parent_header"].get("msg_id") != asked:
                    continue
                kind, content = message["msg_type"], message["content"]
                if kind == "status" and content["execution_state"] == "idle":
                    return outputs
                self._take(outputs, kind, content)
            if interrupt_when is not None and interrupt_when(outputs):
                interrupt_when = None
                self._manager.interrupt_kernel()
        raise TimeoutError(code)

    def _take(self, outputs: list[Any], kind: str, content: Any) -> None:
        if kind == "update_display_data":
            self.updates += 1
            own = content["transient"]["display_id"]
            for output in outputs:
                if output.get("transient", {}).get("display_id") == own:
                    output.update(content)
        elif kind in ("display_data", "execute_result", "stream", "error"):
            outputs.append({"kind": kind, **content})


def text_of(outputs: list[Any]) -> str:
    """What a cell has printed."""
    return "".join(output["text"] for output in outputs if output["kind"] == "stream")


def html_of(outputs: list[Any]) -> list[str]:
    """The outputs that are HTML."""
    return [each["data"]["text/html"] for each in outputs if "text/html" in each.get("data", {})]


@contextlib.contextmanager
def kernel(directory: Path) -> Iterator[Kernel]:
    """Start a kernel in a directory, and end it."""
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("jupyter_client")
    manager, channels = client.manager.start_new_kernel(
        kernel_name="python3",
        cwd=str(directory),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()},
    )
    try:
        yield Kernel(manager, channels)
    finally:
        channels.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
