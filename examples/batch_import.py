"""Import a file of records into a service that fails the way real ones do.

Every record of a CSV file is posted to the failing local server: so many at once, so many a second, transient errors
again. A bar shows how far it is (on a terminal, with tqdm or rich); Ctrl-C stops within a second. Either way it ends
with a table of what was done and what was not, and why. Exit code 0: all imported; 1: some failed; 130: interrupted.

    python examples/batch_import.py [RECORDS.csv]     without a file, it makes one of 300 records and imports that
"""

from __future__ import annotations

import asyncio
import csv
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from loguru import logger

from guarded import Cancelled, CancelToken, Settled, deadline, events, limit, map_limit, rate, retry
from guarded.batch import settled_of

RECORDS, AT_ONCE, PER_SECOND = 300, 12, 150
Record = dict[str, str]

service = limit(AT_ONCE, name="import-service")
pace = rate(f"{PER_SECOND}/s", name="import-pace")


class Importer:
    """Posts records, and notes which of them needed more than one attempt."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    @deadline("10s")
    @service
    @retry(retries=4, base="50ms", max_delay="1s")
    @pace
    async def push(self, record: Record) -> str:
        """Import one record; gives the receipt."""
        order = {"order_id": record["id"]} | ({"step": record["step"]} if record.get("step") else {})
        response = await self.client.post("/charge", json=order, timeout=0.5)
        return str(response.raise_for_status().json()["receipt"])


class Records:
    """The records of a file, read one by one: a batch pulls no more of them than it can use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Record]:
        with self.path.open(newline="") as file:
            yield from csv.DictReader(file)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def write_records(path: Path) -> None:
    """A file to import: mostly good records, and a few that the server will never take."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "amount", "step"])
        for number in range(RECORDS):
            out.writerow([f"record-{number}", number * 3 % 97, "503" if number % 100 == 99 else ""])


@contextmanager
def failing_server() -> Iterator[str]:
    """The server process, out of reach of Ctrl-C; gives its address."""
    script = Path(__file__).with_name("failing_server.py")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def import_all(url: str, records: Records) -> tuple[list[Settled[str]], bool]:
    """Push everything; gives the outcomes, and whether Ctrl-C came."""
    interrupted = CancelToken()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.cancel, "Ctrl-C")
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=AT_ONCE)) as client:
        try:
            outcomes = await map_limit(
                Importer(client).push,
                records,
                concurrency=AT_ONCE,
                errors="collect",
                progress=True,
                cancel=interrupted,
            )
        except Cancelled as error:
            return settled_of(error), True
    return outcomes, False


def report(records: Records, outcomes: Sequence[Settled[str]], retried: int, stopped: bool) -> None:
    """The table: what was done, what failed and why, what was not done."""
    failed = [settled for settled in outcomes if not settled.ok and not settled.cancelled]
    rows: list[tuple[str, int]] = [
        ("succeeded", sum(settled.ok for settled in outcomes)),
        ("failed", len(failed)),
        *((f"  {cause}", count) for cause, count in Counter(map(cause_of, failed)).most_common()),
        ("retried", retried),
    ]
    if stopped:
        rows += [
            ("interrupted half-way", sum(settled.cancelled for settled in outcomes)),
            ("not begun", len(records) - len(outcomes)),
        ]
    print()
    for name, count in rows:
        print(f"{name:<48} {count:>6}")
    if failed:
        print(f"\nfailed: {lines(failed)}")
    if stopped:
        print(f"stopped half-way: {lines([settled for settled in outcomes if settled.cancelled])}")
        print(f"not begun: from line {len(outcomes) + 2} on")


def lines(outcomes: Sequence[Settled[str]]) -> str:
    """Where records stand in the file, below its line of titles."""
    return f"lines {', '.join(str(settled.index + 2) for settled in outcomes)}"


def cause_of(settled: Settled[str]) -> str:
    """A short name for what went wrong."""
    error = settled.error
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return type(error).__name__


def main(arguments: Sequence[str]) -> int:
    """Import a file and say how it went."""
    logger.remove()  # the events would tear the bar apart; they are counted instead
    retried: set[str] = set()

    def note(event: events.Event) -> None:
        if event.name == "retry.scheduled" and event.call_id is not None:
            retried.add(event.call_id)

    with tempfile.TemporaryDirectory() as folder, failing_server() as url, events.subscribe(note):
        path = Path(arguments[0]) if arguments else Path(folder, "records.csv")
        if not arguments:
            write_records(path)
        records = Records(path)
        outcomes, stopped = asyncio.run(import_all(url, records))
        report(records, outcomes, len(retried), stopped)
    if stopped:
        return 130
    return 0 if all(settled.ok for settled in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
