"""A real browser that tests look at and click in: Chromium over its debugging pipe.

with Chromium() as page:
    page.open("file:///report.html")
    page.move(300, 200)
    page.evaluate("document.title")
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("google-chrome")


class Chromium:
    """One page of a headless browser. Nothing of it is kept."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """What the page wrote to the console, violations of its policy, uncaught errors."""
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "bash", str(PATH)),
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--remote-debugging-pipe", "about:blank"),
            ],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._rest, self._last_id, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        self._process.terminate()
        self._process.wait()
        os.close(self._read)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol."""
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": arguments}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._hear(answer)

    def open(self, address: str, *, width: int = 1400, dark: bool = False) -> None:
        """Loads a page and waits until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        metrics: Mapping[str, Any] = {"deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, **metrics)
        self._events.clear()
        self.messages.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._hear(self._next())
        self.settle()

    def settle(self) -> None:
        """Waits until the page has been drawn twice: uPlot draws in a task of its own."""
        twice = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.evaluate(f"{twice}.then(() => 0)")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        arguments = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", **arguments)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def move(self, x: float, y: float, *, buttons: int = 0) -> None:
        """Moves the mouse to a point of the window."""
        self._mouse("mouseMoved", x, y, buttons=buttons)
        self.settle()

    def click(self, x: float, y: float, times: int = 1) -> None:
        """Clicks at a point of the window."""
        for count in range(1, times + 1):
            self._mouse("mousePressed", x, y, button="left", clickCount=count)
            self._mouse("mouseReleased", x, y, button="left", clickCount=count)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drags the mouse from one point to another."""
        self.move(*start)
        self._mouse("mousePressed", *start, button="left", clickCount=1)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        for point in (middle, end):
            self.move(*point, buttons=1)
        self._mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _mouse(self, kind: str, x: float, y: float, **arguments: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **arguments)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        told = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        if event["method"] in told | {"Page.javascriptDialogOpening"}:
            self.messages.append(json.dumps(event["params"]))
