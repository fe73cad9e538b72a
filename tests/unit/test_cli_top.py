"""``guarded top``: a dashboard in the terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from guarded import RetryBudget, circuit, events, limit, rate, retry
from guarded.cli import top
from guarded.cli.commands import app
from guarded.integrations import dashboard

TOKEN = "correct-horse-battery"

pytestmark = pytest.mark.real_clock


@pytest.fixture
def url() -> Iterator[str]:
    """A dashboard of this process."""
    with dashboard.serve(0, interval="100ms") as server:
        yield server.url


def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    result = CliRunner().invoke(app, ["top", *arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_once_prints_how_things_stand(url: str) -> None:
    """Circuits, queues, retries and the latest events."""
    gateway = circuit("gateway")
    limit(20, name="db")
    rate("5/s", name="api")
    retry(name="again")
    RetryBudget(name="budget")
    gateway.isolate()
    status, out, err = run(url, "--once")
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.strip()]
    assert ["gateway", "isolated", "0", "in", "a", "row", "-", "0"] in rows
    assert ["db", "0", "of", "20", "0", "-", "-", "0"] in rows
    assert ["api", "5", "free", "0", "-", "-", "0"] in rows
    assert ["budget", "-", "0", "10"] in rows
    assert ["circuit.isolated", "gateway"] in [row[:2] for row in rows]


def test_json_is_the_document(url: str) -> None:
    """For scripts."""
    limit(7, name="db")
    status, out, _ = run(url.rstrip("/"), "--json")
    assert status == 0
    assert [policy["limit"] for policy in json.loads(out)["policies"]] == [7]


def test_live_it_shows_rates_and_goes_on_over_streams(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates come from two documents; when a stream ends, the next begins; Ctrl-C ends it quietly."""
    monkeypatch.setattr("guarded.integrations.dashboard._wsgi.STREAM", 0.15)
    work = limit(9, name="db")(lambda: None)
    seen: list[Any] = []
    real = top.screen

    def watched(now: Any, before: Any, latest: list[Any]) -> Any:
        seen.append(now)
        work()
        if len(seen) == 6:
            raise KeyboardInterrupt
        return real(now, before, latest)

    monkeypatch.setattr(top, "screen", watched)
    top.top_command(url)
    assert seen[-1]["totals"]["calls"] >= 3
    assert "calls/s" in capsys.readouterr().out


def test_a_rate_is_the_difference_of_two_documents() -> None:
    """Calls per second, retries per second."""
    totals = {"calls": 100, "rejected": 0, "first_attempt": 0.5, "retries": 3, "exhausted": 0, "too_many": 1}
    totals |= {"queued": 0.25, "running": 2000.0}
    before: Any = {"process": 1, "clock": 10.0, "totals": totals, "policies": [], "functions": []}
    now = {**before, "clock": 12.0, "totals": {**totals, "calls": 300, "rejected": 5}}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(top.screen(now, before, []))
    shown = captured.get()
    assert "100 calls/s · 2.5 refused/s · 300 calls · first attempt 50.0%" in shown
    assert "queued 250 ms · running 2000 s" in shown


def test_nothing_listens() -> None:
    """Status 2, and how to start one; no password of the address is shown."""
    status, out, err = run("http://someone:canary@127.0.0.1:1/?key=canary")
    assert (status, out) == (2, "")
    assert "http://127.0.0.1:1/" in err
    assert "guarded.integrations.dashboard.serve()" in err
    assert "canary" not in err


def test_something_else_listens(url: str) -> None:
    """A page that is no dashboard, and an address that is none."""
    status, _, err = run(f"{url}elsewhere")
    assert (status, "404 There is no such page." in err) == (2, True)
    assert run("file:///etc/passwd")[0] == 2
    assert run("nonsense")[0] == 2


def test_a_stream_that_says_nothing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would ask again and again, as fast as it can."""
    asked: list[object] = []

    def empty(opener: object, request: object, timeout: float) -> io.BytesIO:
        asked.append(request)
        if len(asked) > 2:
            raise KeyboardInterrupt
        return io.BytesIO()

    monkeypatch.setattr("urllib.request.OpenerDirector.open", empty)
    status, _, err = run("http://127.0.0.1:1", "--once")
    assert status == 2
    assert err.startswith("http://127.0.0.1:1: no dashboard answers there")
    assert len(asked) == 1


def test_the_token_comes_by_option_or_environment() -> None:
    """Where looking takes one."""
    with dashboard.serve(0, token=TOKEN, loopback_only=False) as server:
        status, out, err = run(server.url, "--json")
        assert (status, out) == (2, "")
        assert "401 The token is missing or wrong." in err
        assert run(server.url, "--json", "--token", TOKEN)[0] == 0
        assert run(server.url, "--json", GUARDED_DASHBOARD_TOKEN=TOKEN)[0] == 0


def test_names_are_text_not_markup(url: str) -> None:
    """Square brackets of a name are shown as they are."""
    circuit("[red]gateway[/red]")
    events.set_level("OFF")
    _, out, _ = run(url, "--once")
    assert "[red]gateway[/red]" in out
