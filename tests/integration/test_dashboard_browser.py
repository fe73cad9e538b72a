"""The dashboard's page in a real, headless Chromium, driven over its debugging pipe by the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import pytest

from guarded import RetryBudget, circuit, limit, rate, retry
from guarded.integrations import dashboard

fcntl = pytest.importorskip("fcntl", reason="the browser is driven over POSIX pipes")

TOKEN = "correct-horse-battery"
BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_binary() -> str | None:
    """The first Chromium on the path."""
    return next(filter(None, map(shutil.which, BINARIES)), None)


def _high(descriptor: int) -> int:
    """Out of the way of 3 and 4, where the browser wants its pipes."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One tab; a context manager."""

    def __init__(self, binary: str, profile: Path) -> None:
        its_input, self._out = map(_high, os.pipe())
        self._in, its_output = map(_high, os.pipe())

        def place() -> None:
            os.dup2(its_input, 3)
            os.dup2(its_output, 4)

        self._process = subprocess.Popen(
            [binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4), preexec_fn=place,
        )  # fmt: skip
        os.close(its_input)
        os.close(its_output)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has gone"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:600])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        """Go to a page."""
        self.send("Page.navigate", url=url)

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, code: str, seconds: float = 15) -> Any:
        """The value of an expression as soon as it is true."""
        give_up = time.monotonic() + seconds
        safe = f"(() => {{ try {{ return {code} }} catch {{ return null }} }})()"  # the page may not be there yet
        while not (value := self.run(safe)):
            assert time.monotonic() < give_up, f"never true: {code}; {self.problems}"
            time.sleep(0.05)
        return value

    def look(self, scheme: str, width: int, height: int = 900) -> None:
        """Light or dark, at a size."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


BINARY = find_binary()

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(BINARY is None, reason=f"no browser: none of {', '.join(BINARIES)} is installed"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests here."""
    assert BINARY is not None
    with Browser(BINARY, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Callable[..., str]]:
    """Opens a dashboard of this process; afterwards nothing must have gone wrong, or outside."""
    with dashboard.serve(0, token=TOKEN, interval="100ms") as server:
        browser.problems.clear()
        browser.requests.clear()
        browser.look("light", 1280)
        browser.open(server.url)
        browser.until("state !== null")
        yield server.url
        browser.open("about:blank")
    own = urlsplit(server.url).netloc
    assert {urlsplit(url).netloc for url in browser.requests} <= {own, ""}


def text(browser: Browser, selector: str) -> str:
    """What a reader sees there."""
    return str(browser.run(f"document.querySelector({selector!r}).innerText"))


def test_the_page_follows_what_happens(page: str, browser: Browser) -> None:
    """Circuits, queues, rates, retries and events change without a reload; names are text, whatever they hold."""
    gateway = circuit("gateway", failures=2)
    circuit("<img src=x onerror=alert(1)>")
    db = limit(4, name="db")
    rate("20/s", name="api")
    RetryBudget(name="budget")

    @retry(retries=1, base=0, jitter="none", on=ConnectionError, name="again")
    @gateway
    def charge() -> None:
        raise ConnectionError("refused, password=canary")

    browser.until("$('circuits').children.length === 2")
    with db, pytest.raises(ConnectionError):
        charge()
    browser.until("$('circuits').innerText.includes('open')")
    assert text(browser, "#circuits").splitlines()[:2] == ["gateway", "open"]
    browser.until("$('events').innerText.includes('circuit.opened')")
    assert "ConnectionError: refused, password=***" in text(browser, "#events")
    browser.until("$('limits').innerText.includes('0 of 4')")
    browser.until("$('functions').innerText.includes('charge')")
    browser.until("$('retries').innerText.includes('1 retries')")
    assert browser.run("document.querySelectorAll('main img').length") == 0
    assert "<img src=x onerror=alert(1)>" in text(browser, "#circuits")
    browser.run("(() => { $('filter').value = 'retry.'; $('filter').dispatchEvent(new Event('input')); })()")
    assert set(
        browser.run("[...document.querySelectorAll('#events .what')].map((x) => x.innerText.split('.')[0])")
    ) == {"retry"}
    assert "canary" not in browser.run("document.documentElement.outerHTML")
    assert browser.problems == []


def test_isolating_takes_two_clicks_and_the_token(page: str, browser: Browser) -> None:
    """A wrong token is told, the right one acts, and the page shows it."""
    gateway = circuit("gateway")

    def press(label: str) -> None:
        browser.until(f"[...document.querySelectorAll('#circuits button')].find((b) => b.innerText === '{label}')")
        browser.run(
            f"[...document.querySelectorAll('#circuits button')].find((b) => b.innerText === '{label}').click()"
        )

    def give(token: str) -> None:
        browser.until("$('ask').open")
        browser.run(f"(() => {{ $('token').value = '{token}'; document.querySelector('#ask .primary').click(); }})()")

    press("Isolate")
    press("Sure?")
    give("a-wrong-token-of-some-length")
    browser.until("!$('trouble').hidden")
    assert text(browser, "#trouble") == "The token is missing or wrong."
    assert gateway.state == "closed"
    press("Isolate")
    press("Sure?")
    give(TOKEN)
    browser.until("document.querySelector('#circuits .pill').innerText === 'isolated'")
    assert gateway.state == "isolated"
    press("Reset")
    press("Sure?")
    browser.until("document.querySelector('#circuits .pill').innerText === 'closed'")
    assert TOKEN not in browser.run("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")


def test_an_act_without_an_answer_is_told(page: str, browser: Browser) -> None:
    """The program may have ended, or obeyed before the connection broke."""
    circuit("gateway")
    browser.until("document.querySelector('#circuits .acts button')")
    browser.run("(() => { token = 'x'; window.fetch = () => Promise.reject(new TypeError('Failed to fetch')); })()")
    for _ in range(2):
        browser.run("document.querySelector('#circuits .acts button').click()")
    assert "No answer came" in browser.until("$('trouble').innerText")
    assert not browser.problems


def test_it_fits_light_and_dark_narrow_and_wide(page: str, browser: Browser, tmp_path: Path) -> None:
    """Nothing sticks out, and the colours are those of the scheme."""
    circuit("a-circuit-with-quite-a-long-name-for-a-narrow-screen", failure_rate=0.5, min_calls=2).isolate()
    limit(1000, name="db")
    browser.until("$('circuits').innerText.includes('isolated') && $('limits').innerText.includes('db')")
    for scheme, width in ((scheme, width) for scheme in ("light", "dark") for width in (1280, 390)):
        browser.look(scheme, width)
        assert browser.run("document.documentElement.scrollWidth") <= width
        light = browser.run(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)"
        )
        assert (light > 3 * 128) == (scheme == "light")
        browser.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000


RATE = 10_000  # calls per second


def test_ten_thousand_calls_a_second_while_the_page_is_open(page: str, browser: Browser) -> None:
    """The page stays live and shows the rate; the calls go on at their pace."""
    work = limit(20, name="db")(retry(retries=1)(circuit("gateway")(lambda: None)))
    lengths: list[float] = []
    stop = threading.Event()

    def drive() -> None:
        clock = time.perf_counter
        began, done = clock(), 0
        while not stop.is_set():
            for _ in range(100):
                before = clock()
                work()
                lengths.append(clock() - before)
            done += 100
            time.sleep(max(0.0, began + done / RATE - clock()))

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        browser.until("state.totals.calls > 1000")
        browser.run("(() => { window.pieces = 0; const f = draw; draw = () => { window.pieces++; f(); }; })()")
        began, calls = time.perf_counter(), browser.run("state.totals.calls")
        time.sleep(1.5)
        pieces, shown = browser.run("[window.pieces, state.totals.calls]")
        seconds = time.perf_counter() - began
    finally:
        stop.set()
        driver.join()
    assert pieces >= 5 * seconds  # of 10 each second
    assert (shown - calls) / seconds > 0.7 * RATE
    assert statistics.median(lengths) < 0.000_3
