"""A page in a real, headless Chromium, driven over a pipe. Nothing of it touches the network."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND"),
)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """`with Browser() as page: page.open(path, width=390, dark=True); page.errors; page.evaluate("1 + 1")`."""

    def __enter__(self) -> Browser:
        executable = find_chromium()
        assert executable is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._folder = tempfile.mkdtemp(prefix="tl_lifehist_chromium_")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def wire() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        for _ in range(50):  # its children may still be writing
            shutil.rmtree(self._folder, ignore_errors=True)
            if not os.path.exists(self._folder):
                break
            time.sleep(0.1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        event = json.loads(line)
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
        return event

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until its scripts have run and two frames are painted."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.scheme(dark=dark)
        self.load(path)
        self.settle()

    def load(self, path: Path) -> None:
        """Load a file and wait for the end of its loading."""
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def scheme(self, *, dark: bool) -> None:
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def settle(self) -> None:
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, clip: dict[str, float] | None = None) -> None:
        extra = {"clip": clip | {"scale": 1}} if clip else {}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, **extra)
        path.write_bytes(base64.b64decode(answer["data"]))
