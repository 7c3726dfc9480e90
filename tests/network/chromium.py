"""Headless Chromium, driven over its DevTools protocol with the WebSocket client at hand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
START_SECONDS = 60.0
PATIENCE = 60.0

FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--mute-audio",
)


class Tab:
    """One page; what its console says in anger is kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Take in answers and events until the tab is closed."""
        async for message in self._socket:
            heard = message.json()
            if "id" in heard:
                self._waiting.pop(heard["id"]).set_result(heard)
            else:
                self._event(heard["method"], heard["params"])

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        heard = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in heard, heard
        result: dict[str, Any] = heard["result"]
        return result

    async def value(self, script: str) -> Any:
        found = await self.command("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def text(self, selector: str) -> str:
        return str(await self.value(f"document.querySelector({selector!r}).textContent.trim()"))

    async def until(self, script: str, seconds: float = PATIENCE) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await self.value(script):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            body = await self.value("document.body.innerText")
            raise AssertionError(f"not within {seconds} s: {script}\n{body}") from None

    async def look(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Be a window so wide, with light or dark colours."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])
        await asyncio.sleep(1.5)  # charts are drawn again

    async def screenshot(self, path: Path) -> None:
        made = await self.command(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(made["data"]))

    async def memory(self) -> tuple[float, int]:
        """Return the used part of the JavaScript heap, in megabytes, and the number of nodes."""
        await self.command("HeapProfiler.collectGarbage")
        heap = await self.command("Runtime.getHeapUsage")
        counters = await self.command("Memory.getDOMCounters")
        return heap["usedSize"] / 1e6, counters["nodes"]


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    assert CHROMIUM is not None
    own = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = [CHROMIUM, *FLAGS, *own, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session, _tab(session, port) as tab:
                yield tab
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(START_SECONDS):
        while not (file.exists() and file.read_text().count("\n")):
            assert process.poll() is None, "chromium ended"
            await asyncio.sleep(0.1)
    return int(file.read_text().splitlines()[0])


@asynccontextmanager
async def _tab(session: aiohttp.ClientSession, port: int) -> AsyncIterator[Tab]:
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        pages = [one for one in await answer.json() if one["type"] == "page"]
    url = pages[0]["webSocketDebuggerUrl"]
    async with session.ws_connect(url, max_msg_size=1 << 27) as socket:
        tab = Tab(socket)
        task = asyncio.create_task(tab.listen())
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await tab.command(f"{domain}.enable")
            yield tab
        finally:
            task.cancel()
