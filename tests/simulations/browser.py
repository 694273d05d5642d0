"""A headless Chromium or Chrome that tests steer over a pair of pipes, in DevTools' protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Nothing of a browser's own may go to the network, nor ask for a desktop.
_OPTIONS = (
    *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-quic"),
    *("--hide-scrollbars", "--window-size=1280,900", "--remote-debugging-pipe"),
)


def find_browser() -> str | None:
    """Return the path of a browser on this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """An open tab. Its requests are noted as they are made."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, *, scripts: bool = True) -> None:
        """Open a file, with the page's own scripts or without, and wait until all is loaded."""
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._call("Page.navigate", url=page.as_uri())
        while self.evaluate("`${document.readyState} ${document.URL}`") != (
            f"complete {page.as_uri()}"
        ):
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression gives, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        """Read one message, and note what it tells of the page."""
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            text += byte
        message: dict[str, Any] = json.loads(text)
        told, method = message.get("params", {}), message.get("method")
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded":
            self.messages.append(told["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(told["exceptionDetails"]))
        return message


@contextmanager
def browser_tab(program: str, profile: Path) -> Iterator[Tab]:
    """Start a browser with a new profile in an empty folder, and give its one tab."""
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    options = [*_OPTIONS, f"--user-data-dir={profile}"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # as root there is none
    # The browser reads commands from descriptor 3, and writes answers to 4.
    shell = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", program, *options],
        pass_fds=(read_commands, write_answers),
        env=os.environ | {"IN": str(read_commands), "OUT": str(write_answers)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    with os.fdopen(commands, "wb") as to_browser, os.fdopen(answers, "rb") as from_browser:
        try:
            yield Tab(to_browser, from_browser)
        finally:
            process.terminate()
            process.wait(timeout=30)
