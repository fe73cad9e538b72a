"""``guarded top``: a running process in the terminal, by way of its dashboard."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from guarded.cli._shell import WIDTH

DEFAULT_URL = "http://127.0.0.1:8765/"
_TIMEOUT = 90  # seconds; a dashboard speaks at least once a minute
_EVENTS = 8
_COLOURS = {"open": "red", "isolated": "red", "half-open": "yellow", "closed": "green"}
_LEVELS = {"WARNING": "yellow", "ERROR": "red"}


def top_command(
    url: Annotated[str, typer.Argument(help="Where the dashboard is.")] = DEFAULT_URL,
    token: Annotated[
        str | None, typer.Option(envvar="GUARDED_DASHBOARD_TOKEN", help="Token, where looking takes one.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print how things stand, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one document as JSON, and end.")] = False,
) -> None:
    """Watch a running process.

    Through its dashboard, guarded.integrations.dashboard; Ctrl-C ends it.
    """
    try:
        source = _documents(url, token)
        if as_json:
            typer.echo(json.dumps(next(source)[0], ensure_ascii=False, indent=2))
        elif once:
            document, events = next(source)
            Console(width=None if sys.stdout.isatty() else WIDTH).print(screen(document, None, events))
        else:
            _watch(source)
    except KeyboardInterrupt:
        pass
    except HTTPError as error:
        _end(f"{_shown(url)}: {error.code} {_detail(error)}")
    except (URLError, OSError, HTTPException, ValueError, LookupError, StopIteration) as error:
        reason = error.reason if isinstance(error, URLError) else f"no dashboard answers there ({type(error).__name__})"
        _end(f"{_shown(url)}: {reason}; start one with guarded.integrations.dashboard.serve()")


def _watch(source: Iterator[tuple[Any, list[Any]]]) -> None:
    before: Any = None
    latest: deque[Any] = deque(maxlen=_EVENTS)
    with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for document, events in source:
            latest.extend(events)
            live.update(screen(document, before, list(latest)), refresh=True)
            before = document


def _documents(url: str, token: str | None) -> Iterator[tuple[Any, list[Any]]]:
    """Each state with the events that came with it, from one stream after another."""
    opener = build_opener(ProxyHandler({}))  # the dashboard answers to no proxy
    headers = {"Accept": "text/event-stream", **({"Authorization": f"Bearer {token}"} if token else {})}
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("not an address of the web")
    while True:
        request = Request(f"{url.rstrip('/')}/api/stream", headers=headers)
        said_nothing = True
        with opener.open(request, timeout=_TIMEOUT) as response:
            for found in _of_stream(response):
                said_nothing = False
                yield found
        if said_nothing:
            raise ValueError("an empty answer")


def _of_stream(response: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Events come before the state that they have led to."""
    events: list[Any] = []
    for name, value in _pieces(response):
        if name == "events":
            events = value
        else:
            yield value, events
            events = []


def _pieces(response: Any) -> Iterator[tuple[str, Any]]:
    while name := response.readline().decode().removeprefix("event: ").strip():
        yield name, json.loads(response.readline().decode().removeprefix("data: "))
        response.readline()


def screen(now: Any, before: Any, events: list[Any]) -> Group:
    """Everything, as one renderable."""
    parts: list[Any] = [_head(now, before), Text()]
    tables = (_circuits(now), _queues(now), _retries(now, before), _functions(now, before))
    parts += [part for table in tables if table is not None for part in (table, Text())]
    if events:
        parts.append(_latest(events))
    return Group(*parts)


def _per(now: Any, before: Any, field: str) -> float:
    """Per second, since the document before."""
    return 0.0 if before is None else max(0.0, now[field] - before[field])


def _head(now: Any, before: Any) -> Text:
    totals, seconds = now["totals"], _seconds(now, before)
    earlier = None if before is None else before["totals"]
    share = totals["first_attempt"]
    text = Text()
    text.append(f"process {now['process']}", style="bold")
    if seconds:
        text.append(f" · {_per(totals, earlier, 'calls') / seconds:.4g} calls/s")
        text.append(f" · {_per(totals, earlier, 'rejected') / seconds:.4g} refused/s")
    text.append(f" · {totals['calls']} calls · first attempt {'-' if share is None else f'{share:.1%}'}")
    text.append(f" · {totals['retries']} retries · {totals['exhausted']} exhausted · {totals['too_many']} answers 429")
    text.append(f" · queued {_time(totals['queued'])} · running {_time(totals['running'])}")
    return text


def _seconds(now: Any, before: Any) -> float:
    return 0.0 if before is None else max(0.0, now["clock"] - before["clock"])


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index == 0 else "right", overflow="ellipsis", no_wrap=True)
    return table


def _circuits(now: Any) -> Table | None:
    table = _table("circuit", "state", "failed", "until a trial", "refused")
    for circuit in _of(now, "circuit"):
        rate = circuit["failure_rate"]
        failed = f"{circuit['failures']} in a row" if rate is None else f"{rate:.1%} of {circuit['calls']}"
        state = Text(circuit["state"], style=_COLOURS.get(circuit["state"], ""))
        table.add_row(Text(circuit["name"]), state, failed, _time(circuit["retry_after"]), str(circuit["rejected"]))
    return table if table.row_count else None


def _queues(now: Any) -> Table | None:
    table = _table("limit or rate", "in use", "waiting", "longest", "mean wait", "refused")
    for policy in _of(now, "limit", "rate"):
        use = f"{policy['held']} of {policy['limit']}" if "held" in policy else f"{policy.get('free', '-')} free"
        mean = policy["waited"] / policy["waits"] if policy["waits"] else None
        waiting = Text(str(policy.get("queued", "-")), style="yellow" if policy.get("queued") else "")
        oldest = _time(policy.get("oldest_wait") or None)
        table.add_row(Text(policy["name"]), use, waiting, oldest, _time(mean), str(policy["rejected"]))
    return table if table.row_count else None


def _retries(now: Any, before: Any) -> Table | None:
    table = _table("retry", "per second", "in all", "left in the budget")
    seconds = _seconds(now, before)
    for policy in _of(now, "retry", "retry_budget"):
        earlier = next((p for p in before["policies"] if p["name"] == policy["name"]), None) if before else None
        rate = f"{_per(policy, earlier, 'retries') / seconds:.3g}" if seconds and policy["kind"] == "retry" else "-"
        left = f"{policy['balance']:.0f}" if "balance" in policy else "-"
        table.add_row(Text(policy["name"]), rate, str(policy["retries"]), left)
    return table if table.row_count else None


def _functions(now: Any, before: Any) -> Table | None:
    table = _table("function", "calls/s", "calls", "failed", "mean", "longest")
    seconds = _seconds(now, before)
    for function in sorted(now["functions"], key=lambda found: -found["calls"])[:12]:
        earlier = next((f for f in before["functions"] if f["name"] == function["name"]), None) if before else None
        rate = f"{_per(function, earlier, 'calls') / seconds:.4g}" if seconds else "-"
        calls = function["calls"] or 1
        failed = Text(f"{function['failed'] / calls:.1%}", style="red" if function["failed"] else "")
        mean, longest = _time(function["seconds"] / calls), _time(function["longest"])
        table.add_row(Text(function["name"]), rate, str(function["calls"]), failed, mean, longest)
    return table if table.row_count else None


def _latest(events: list[Any]) -> Table:
    table = _table("latest events", "policy", "what")
    table.columns[1].justify = table.columns[2].justify = "left"
    for event in events[-_EVENTS:]:
        what = event.get("cause") or event.get("reason") or event.get("state") or ""
        name = Text(event["name"], style=_LEVELS.get(event["level"], ""))
        table.add_row(name, Text(event.get("policy") or event.get("function") or ""), Text(str(what)))
    return table


def _of(now: Any, *kinds: str) -> list[Any]:
    """Policies of these kinds, without those that have no state to show."""
    return [
        policy
        for policy in now["policies"]
        if policy["kind"] in kinds and (policy["live"] or policy["kind"] == "retry")
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def _shown(url: str) -> str:
    """An address without a password in it."""
    return urlsplit(url)._replace(query="", fragment="", netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()


def _detail(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, LookupError, TypeError, OSError):
        return str(error.reason)


def _end(message: str) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(2)
