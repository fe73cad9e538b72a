"""A canary goes through guarded calls in every place a secret can be, and sings nowhere.

Arguments, results, keys, headers, URLs and messages of exceptions on the way in; events, log lines, spans, metrics, the
dashboard's page and documents, and the output of the command line on the way out.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
import pytest
import structlog
from loguru import logger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

import guarded
from guarded import circuit, deadline, events, fallback, idempotent, limit, rate, retry
from guarded.cli.commands import app
from guarded.events.model import Event
from guarded.events.sinks import logging as logging_sink
from guarded.events.sinks import loguru as loguru_sink
from guarded.events.sinks import opentelemetry as opentelemetry_sink
from guarded.events.sinks import prometheus as prometheus_sink
from guarded.events.sinks import structlog as structlog_sink
from guarded.integrations import dashboard
from guarded.integrations.httpx import GuardedTransport
from guarded.testing import virtual_time

CANARY = "c4n4ry"
MESSAGES = (
    f"https://svc:{CANARY}@gateway/charge?card={CANARY}#{CANARY} answered 503",
    f"Authorization: Bearer {CANARY}",
    f"{{'headers': {{'X-Api-Key': '{CANARY}', 'Cookie': 'session={CANARY}'}}}}",
    f"could not connect: password={CANARY} host=db",
    f"redis://:{CANARY}@cache:6379/0 timed out",
    f"POST /token client_secret={CANARY}&grant_type=x",
)


class GatewayError(ConnectionError):
    """What a careless client raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.status = 429
        self.headers = {"Authorization": CANARY}
        self.canary = CANARY


class Outputs:
    """Everywhere that something of a call can show up."""

    def __init__(self, stack: ExitStack) -> None:
        self.events: list[Event] = []
        self.lines = {name: io.StringIO() for name in ("loguru", "logging", "structlog")}
        self.prometheus = CollectorRegistry()
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        meters, tracers = MeterProvider(metric_readers=[self.reader]), TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = tracers.get_tracer("canary")
        handler = logger.add(self.lines["loguru"], level=0, format="{message} {extra}\n{exception}", diagnose=True)
        stack.callback(logger.remove, handler)
        target, stream = logging.Logger("canary", 1), logging.StreamHandler(self.lines["logging"])
        stream.setFormatter(logging.Formatter("%(message)s %(guarded)s"))
        target.addHandler(stream)
        printer = structlog.PrintLogger(self.lines["structlog"])
        lines = structlog.wrap_logger(printer, [structlog.processors.JSONRenderer()])
        stack.enter_context(events.subscribe(self.events.append, "TRACE"))
        stack.enter_context(loguru_sink.install("TRACE"))
        stack.enter_context(logging_sink.install("TRACE", logger=target))
        stack.enter_context(structlog_sink.install("TRACE", logger=lines))
        stack.enter_context(prometheus_sink.install(registry=self.prometheus))
        spans = opentelemetry_sink.install(
            span_level="TRACE", attempt_spans=True, meter_provider=meters, tracer_provider=tracers
        )
        stack.enter_context(spans)
        stack.callback(meters.shutdown)

    def shown(self) -> Iterator[tuple[str, str]]:
        """What came out, by place."""
        for event in self.events:
            yield "event", f"{event!r} {event} {event.fields()}"
        for name, text in self.lines.items():
            yield name, text.getvalue()
        yield "prometheus", generate_latest(self.prometheus).decode()
        data = self.reader.get_metrics_data()
        yield "metrics", "" if data is None else data.to_json()
        for span in self.spans.get_finished_spans():
            yield "span", span.to_json()
        yield "stats", repr(guarded.stats())
        yield "snapshot", repr(guarded.registry.snapshot())
        yield "recent", repr(events.recent())


@pytest.fixture
def outputs() -> Iterator[Outputs]:
    """All sinks at once, at every level."""
    with ExitStack() as stack:
        guarded.stats()
        yield Outputs(stack)
    guarded.events.tally.stop()


def make_shop() -> Any:
    """A method under every layer that may see a secret; made here, so that its names are registered in the test."""

    class Shop:
        failing: list[str]

        @fallback("closed", on=guarded.CircuitOpen)
        @idempotent(key="{card}:{headers[token]}", name="once")
        @deadline("10s", name="total")
        @limit(2, key="card", name="by-card")
        @retry(retries=1, base=0, jitter="none", name="again")
        @circuit("gateway", failures=3)
        @rate("100/s", key="{headers[token]}", name="by-token")
        async def charge(self, card: str, headers: dict[str, str]) -> dict[str, str]:
            if self.failing:
                raise GatewayError(self.failing.pop(0))
            return {"receipt": CANARY, "card": card}

    shop = Shop()
    shop.failing = []
    return shop


async def use_the_shop() -> None:
    """Successes, replays, mismatches, failures, an open circuit, a refusal, a late call."""
    shop, secret = make_shop(), {"token": CANARY}
    assert (await shop.charge(CANARY, secret))["receipt"] == CANARY
    assert (await shop.charge(CANARY, secret))["receipt"] == CANARY
    with pytest.raises(guarded.KeyMismatch):
        await shop.charge(CANARY, {**secret, "more": CANARY})
    for number, message in enumerate(MESSAGES):
        shop.failing = [message, message]
        try:
            await shop.charge(f"{CANARY}-{number}", secret)
        except GatewayError:
            pass
        guarded.registry["gateway"].reset()  # type: ignore[attr-defined]
    shop.failing = list(MESSAGES)
    for number in range(3):
        try:
            await shop.charge(f"{CANARY}-{number}-again", secret)
        except GatewayError:
            pass
    full = limit(1, key="card", max_queue=0, name="full")

    async def hold(card: str) -> None:
        await guarded.asleep(5)

    slow = deadline("1s", name="short")(full(hold))
    first = asyncio.ensure_future(slow(CANARY))
    await guarded.asleep(0.1)
    with pytest.raises(guarded.LimitFull):
        await slow(card=CANARY)
    with pytest.raises(guarded.DeadlineExceeded):
        await first


def test_the_canary_sings_nowhere(outputs: Outputs) -> None:
    """In no event, log line, span, metric, figure or snapshot."""
    with virtual_time(), outputs.tracer.start_as_current_span("request"):
        asyncio.run(use_the_shop())
    names = {event.name for event in outputs.events}
    assert {"call.succeeded", "call.failed", "retry.scheduled", "retry.exhausted", "circuit.opened"} <= names
    assert {"circuit.rejected", "limit.rejected", "deadline.exceeded", "fallback.used"} <= names
    assert {"idempotent.stored", "idempotent.replayed", "idempotent.mismatched"} <= names
    shown = list(outputs.shown())
    assert {place for place, text in shown if "gateway" in text} >= {"event", "loguru", "logging", "structlog", "span"}
    assert all(text for _, text in shown)
    assert [(place, text) for place, text in shown if CANARY in text] == []


def test_not_from_a_client_either(outputs: Outputs) -> None:
    """URL, query, headers and body of requests, and of the errors about them."""
    guarded.guard(retry(retries=1, base=0, jitter="none"), circuit("client"), name="outbound")
    answers = iter((503, 503, 200))

    def answer(request: httpx.Request) -> httpx.Response:
        status = next(answers, None)
        if status is None:
            raise httpx.ConnectError(f"{request.url} {dict(request.headers)} refused", request=request)
        return httpx.Response(status, text=CANARY, headers={"Set-Cookie": f"session={CANARY}"})

    transport = GuardedTransport("outbound", transport=httpx.MockTransport(answer))
    secret = {"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY}
    with httpx.Client(transport=transport, headers=secret) as client:
        url = f"https://user:{CANARY}@api.example/v1?key={CANARY}"
        assert client.get(url).status_code == 503
        assert client.get(url).status_code == 200
        with pytest.raises(httpx.ConnectError):
            client.get(url)
    shown = list(outputs.shown())
    assert any("retry.scheduled" in text for _, text in shown)
    assert [(place, text) for place, text in shown if CANARY in text] == []


def test_not_on_the_page_or_in_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents, events and the stream of the dashboard, ``guarded top``; its own token neither."""
    token = f"{CANARY}-as-the-token"
    with dashboard.serve(0, token=token, interval="100ms") as server:
        stream = urlopen(f"{server.url}api/stream", timeout=10)
        with stream, virtual_time():
            asyncio.run(use_the_shop())
            stream_text = ""
            while "circuit.rejected" not in stream_text or "event: state" not in stream_text:
                stream_text += stream.readline().decode()
        pages = [urlopen(server.url + path, timeout=10) for path in ("", "api/state", "api/events")]
        shown = [stream_text]
        for page in pages:
            with page:
                shown.append(page.read().decode())
        arguments = [["top", server.url, option, "--token", token] for option in ("--once", "--json")]
        shown += [CliRunner().invoke(app, given).output for given in arguments]
    assert sum("gateway" in text for text in shown) >= 5
    assert [text for text in shown if CANARY in text] == []


FILE = f"""
stores: {{shared: {{url: "redis://svc:{CANARY}@cache:6379/0?password={CANARY}"}}}}
policies:
  pay:
    limit: {{max_concurrent: 2}}
    rate:  {{spec: 10/s, store: shared}}
    retry: {{retries: 1}}
"""


@pytest.mark.parametrize(
    "command",
    ["check", "check --json", "show", "show --json", "explain pay", "explain pay --json", "simulate -p pay"],
)
def test_not_by_the_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's address has a password in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "guarded.yaml").write_text(FILE)
    result = CliRunner().invoke(app, [*command.split(), "guarded.yaml"])
    assert result.exit_code == 0, result.output
    assert CANARY not in result.output
    config = guarded.registry.config
    if config is not None:
        config.close()  # type: ignore[attr-defined]


def test_messages_can_be_turned_off() -> None:
    """A bare secret in free text cannot be told from any other word; then only the type is shown."""
    before = events.show_messages(False)
    try:
        with guarded.testing.capture() as seen, pytest.raises(GatewayError):
            limit(1)(_bare)()
    finally:
        assert events.show_messages(before) is False
    assert [str(event.cause) for event in seen if event.cause] == ["GatewayError"]
    assert CANARY not in json.dumps([event.fields() for event in seen])


def _bare() -> None:
    raise GatewayError(f"card {CANARY} declined")
