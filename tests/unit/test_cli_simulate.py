"""``guarded simulate``: the load, the pretended service, what is printed and drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from guarded import RetryBudget, circuit, deadline, fallback, idempotent, limit, rate, registry, retry
from guarded._core import clock
from guarded.cli import plots, simulate
from guarded.cli.commands import app
from guarded.cli.simulation import BUCKETS, Load, Outcome
from guarded.cli.simulation import simulate as simulated
from guarded.errors import Deadlock
from guarded.stores.sqlite import SQLiteStore

STACK = """
policies:
  db:  {limit: {max_concurrent: 5, max_queue: 20}}
  pay:
    limit:   db
    retry:   {retries: 2, base: 100ms}
    circuit: {failures: 50}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "guarded.yaml").write_text(STACK)
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    result = CliRunner().invoke(app, ["simulate", "guarded.yaml", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def total(outcome: Outcome) -> int:
    """All ends that a call can come to."""
    ends = outcome.served + outcome.failed + outcome.out_of_time + outcome.unfinished
    return ends + sum(outcome.refused.values())


def test_a_calm_load_is_served() -> None:
    """Poisson arrivals at the rate, each served after exactly the latency, and no real second goes by."""
    started = clock.monotonic()
    outcome = simulated([limit(1000)], Load(rps=100, latency=(0.1, 0.1), duration=60))
    assert clock.monotonic() - started < 30
    assert 5700 < outcome.offered < 6300
    assert outcome.served == outcome.offered == outcome.requests
    assert outcome.percentile(0.5) == pytest.approx(0.1, abs=1e-6)
    assert outcome.stats.first_attempt == 1.0
    assert outcome.stats.seconds == pytest.approx(60, abs=1)
    assert len(outcome.series.offered) == BUCKETS


def test_every_call_comes_to_one_end() -> None:
    """Served, failed, refused, out of time or still waiting; and retries add up with requests."""
    layers = [deadline("800ms", name="d"), limit(5, max_queue=5, name="db"), retry(retries=2, base="50ms")]
    outcome = simulated([*layers, rate("40/s", max_wait="50ms", name="api")], Load(rps=80, failure=0.3))
    assert total(outcome) == outcome.offered
    assert outcome.refused["db"] > 0
    assert outcome.refused["api"] > 0
    assert outcome.stats.retries > 0
    assert sum(outcome.series.requests) <= outcome.requests
    assert outcome.requests <= outcome.offered + outcome.stats.retries
    assert outcome.stats.queued > 0


def test_one_seed_one_outcome() -> None:
    """Also the jitter of the retries comes from it; another seed gives another outcome."""

    def once(seed: int) -> Outcome:
        with registry.isolated():
            return simulated([limit(4), retry(retries=3)], Load(rps=40, failure=0.2, duration=20, seed=seed))

    assert once(7) == once(7)
    assert once(7) != once(8)


def test_a_full_queue_refuses_and_the_worst_latency_shows_the_wait() -> None:
    """One permit, 200 ms each, 20 calls a second: 5 a second are served, with the queue's wait before them."""
    outcome = simulated([limit(1, max_queue=3, name="db")], Load(rps=20, latency=(0.2, 0.2), duration=30))
    assert outcome.served / 30 == pytest.approx(5, rel=0.1)
    assert outcome.refused["db"] == outcome.offered - outcome.served
    worst = outcome.percentile(1.0)
    assert worst is not None
    assert 0.6 < worst <= 0.8001
    assert max(outcome.series.waiting) == 3


def test_an_outage_opens_the_circuit() -> None:
    """Then little reaches the service, and afterwards it is found again."""
    gateway = circuit("gateway", failures=5, reset_after=2)
    outcome = simulated([gateway], Load(rps=50, duration=60, outage=(20, 40)))
    third = BUCKETS // 3
    assert outcome.refused["gateway"] > 800
    assert sum(outcome.series.requests[third : 2 * third]) < 60
    assert sum(outcome.series.served[:third]) == pytest.approx(sum(outcome.series.served[2 * third :]), rel=0.3)


def test_a_retry_storm_and_its_cures() -> None:
    """Above its capacity the service gets slower: retries alone keep it down, a budget or a limit does not."""
    load = Load(rps=40, latency=(0.03, 0.07), duration=20, capacity=4, outage=(3, 7))
    again = retry(retries=3, base="50ms")
    storm = simulated([again, deadline("250ms")], load)
    thrifty = simulated([retry(retries=3, base="50ms", budget=RetryBudget(0.1)), deadline("250ms")], load)
    outside = simulated([limit(3, max_queue=20), again, deadline("250ms")], load)
    assert storm.served < 0.4 * storm.offered
    assert storm.requests > 3 * storm.offered
    assert thrifty.served > 0.7 * thrifty.offered  # 16 of the 20 seconds are left to it
    assert outside.served > 0.7 * outside.offered
    assert outside.peak <= 4


def test_what_a_simulation_cannot_have_is_noted(tmp_path: Path) -> None:
    """Stores and idempotency keys are left out, the rest is as it is."""
    stored = rate("10/s", name="api", store=SQLiteStore(f"sqlite:///{tmp_path}/x.db"))
    outcome = simulated([idempotent(key="order_id", name="once"), stored], Load(rps=5, duration=10))
    assert outcome.notes == (
        "once: left out, since every simulated call has a key of its own",
        "api: without its store, as one process alone",
    )
    assert outcome.served > 0


def test_keys_are_spread() -> None:
    """Names, templates with attributes and functions all get arguments; each key has its own budget."""
    layers: list[Any] = [
        limit(1, key="{user.id}", max_queue=0, name="by-user"),
        limit(9, key=lambda tenant, **_: tenant, weight="size", name="by-tenant"),
    ]
    one = simulated(layers, Load(rps=20, duration=20))
    many = simulated([limit(1, key="{user.id}", max_queue=0, name="by-user-2")], Load(rps=20, duration=20, keys=50))
    assert one.refused["by-user"] > 5 * many.refused.get("by-user-2", 0)


class Declined(Exception):
    """An error of an application, which cannot be made without arguments."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)


def test_the_service_fails_in_the_way_the_policies_look_for() -> None:
    """An error type of the user's own is retried, and counted by the circuit."""
    outcome = simulated([retry(retries=1, on=Declined, base=0, jitter="none")], Load(rps=20, failure=1.0, duration=10))
    assert outcome.requests == 2 * outcome.offered == 2 * outcome.failed
    opened = simulated([circuit("g", on=(Declined, KeyError), failures=3)], Load(rps=20, failure=1.0, duration=10))
    assert opened.requests == 3


def test_a_fallback_is_a_kind_of_served() -> None:
    """It is counted apart, too."""
    outcome = simulated([fallback("cached", on=Exception)], Load(rps=20, failure=0.5, duration=10))
    assert outcome.served == outcome.offered
    assert 0.3 < outcome.fallbacks / outcome.offered < 0.7


def test_who_waits_for_ever_is_counted() -> None:
    """A paused limit lets nobody through."""
    paused = limit(1, name="db")
    paused.resize(0)
    outcome = simulated([paused], Load(rps=5, duration=10))
    assert outcome.unfinished == outcome.offered > 0
    assert clock.installed() is None


def test_a_plain_wait_is_refused_instead_of_hanging() -> None:
    """There is one thread; a blocking wait in it would be the end."""
    from guarded.cli._virtual_loop import run as run_virtually

    async def main() -> None:
        import asyncio

        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="everyone waits"):
        run_virtually(main())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rps": 0}, "rps=0: must be above 0"),
        ({"failure": 1.5, "keys": 0}, "failure=1.5: must be a share from 0 to 1; keys=0: must be at least 1"),
        ({"latency": (0.2, 0.1)}, "latency="),
        ({"outage": (5, 5)}, r"outage=\(5, 5\): must end after it starts"),
        ({"capacity": 0, "duration": float("inf")}, "duration=inf: must be above 0; capacity=0: must be at least 1"),
    ],
)
def test_a_wrong_load_is_refused(options: dict[str, Any], problem: str) -> None:
    """All that is wrong, with the rule."""
    with pytest.raises(ValueError, match=problem):
        Load(**options)


def test_the_command_prints_a_table_and_a_plot() -> None:
    """What is served, queued, refused, retried, and the worst latency; then a line for each series."""
    status, out, err = run("--policy", "pay", "--rps", "60", "--latency", "50ms..150ms", "--failure", "0.1")
    assert (status, err) == (0, "")
    for label in ("calls ", "served ", "refused by db ", "retries ", "time queued ", "latency, worst "):
        assert f"\n{label}" in out
    assert out.count("▁") + out.count("█") > 20
    assert out.splitlines()[0].strip() == "pay: 60 calls/s"
    assert list(registry) == []


def test_the_command_prints_json() -> None:
    """The same figures, for programs; the same seed gives the same document."""
    arguments = ("-p", "pay", "--rps", "30", "--duration", "20s", "--outage", "5s..10s", "--seed", "3", "--json")
    status, out, _ = run(*arguments)
    found = json.loads(out)
    assert status == 0
    assert found["offered"] == found["served"] + found["failed"] + sum(found["refused"].values())
    assert set(found["latency"]) == {"p50", "p95", "p99", "p100"}
    assert (found["load"]["outage"], found["load"]["seed"]) == ([5.0, 10.0], 3)
    assert run(*arguments)[1] == out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-p", "pax"), "pax"),
        (("-p", "pay", "--rps", "-1"), "rps=-1.0: must be above 0"),
        (("-p", "pay", "--latency", "soon"), "latency"),
        (("-p", "pay", "--outage", "9s..3s"), "outage"),
    ],
)
def test_wrong_arguments_end_with_status_2(arguments: tuple[str, ...], problem: str) -> None:
    """On standard error, in one line."""
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert "Traceback" not in err


def test_a_wrong_file_is_told_as_check_tells_it(folder: Path) -> None:
    """Line and column, status 2."""
    (folder / "guarded.yaml").write_text("policies:\n  p: {limit: 0}\n")
    status, _, err = run("-p", "p")
    assert status == 2
    assert "guarded.yaml:2:" in err


def test_a_picture_needs_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, one line says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = run("-p", "pay", "--duration", "2s", "--png", "out.png")
    assert (status, err) == (
        1,
        "guarded: a picture needs matplotlib, which is not installed: pip install 'guarded[plot]'\n",
    )


def test_a_picture_is_drawn(folder: Path) -> None:
    """A PNG; an ending that is no format is a mistake."""
    pytest.importorskip("matplotlib")
    assert run("-p", "pay", "--duration", "5s", "--outage", "1s..2s", "--png", "out.png")[0] == 0
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    status, _, err = run("-p", "pay", "--duration", "2s", "--png", "out.nonsense")
    assert (status, err.startswith("out.nonsense: ")) == (2, True)


def test_blocks() -> None:
    """Full at the top, never blank above zero, blank where there is nothing."""
    assert plots.blocks([0, 0.001, 4, 8], 8) == " ▁▄█"
    assert plots.blocks([0, 0], 0) == "  "


def test_nothing_served_has_no_latency() -> None:
    """A dash instead of a number."""
    outcome = simulated([], Load(rps=5, failure=1.0, duration=5))
    assert outcome.percentile(0.5) is None
    assert ("latency, worst", "-", "of served calls") in simulate.rows(outcome)
