"""A headless Chromium, driven over its DevTools protocol: no driver to install, one WebSocket."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")


class Page:
    """One tab."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what the page reports meanwhile is dropped."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, code: str) -> Any:
        """Value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{code}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, code: str, seconds: float = 60) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                found = self.run(code)
            except RuntimeError:  # the page is being loaded
                found = None
            if found:
                return found
            time.sleep(0.2)
        raise TimeoutError(f"not within {seconds:.0f} s: {code}")

    def open(self, url: str, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def double_click(self, element: str) -> None:
        """Double click the middle of an element that a JavaScript expression gives."""
        x, y = self.run(f"(() => {{ const r = {element}.getBoundingClientRect();"
                        " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """A tab of a new Chromium with a profile of its own in `folder`."""
    import websocket

    profile = folder / "profile"
    process = subprocess.Popen([program, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0",
                                "--remote-allow-origins=*", "about:blank"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = profile / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not told.exists() or not told.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.1)
        port = int(told.read_text().splitlines()[0])
        tabs = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30).read())
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        socket = websocket.create_connection(address, timeout=60)
        try:
            page = Page(socket)
            page.call("Page.enable")
            yield page
        finally:
            socket.close()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
