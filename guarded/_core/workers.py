"""Daemon threads that run bodies a caller may stop waiting for.

Python cannot interrupt a blocked thread: a caller that leaves on time leaves its worker behind. Such abandoned
workers are counted, and bounded by `MAX_ABANDONED`; idle ones are kept for the next body. Daemons, since a hung
body must not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from guarded._core.fork import after_fork
from guarded._core.waiters import ThreadWaiter

MAX_ABANDONED = 64
MAX_IDLE = 32


class Job:
    """One body on its way through a worker.

    Attributes:
        waiter: what the caller parks on.
        done: whether the body has ended; `result` or `error` then holds its outcome.
    """

    __slots__ = ("_abandoned", "_body", "_lock", "_on_late", "done", "error", "result", "waiter")

    def __init__(self, body: Callable[[], Any], on_late: Callable[[Job], object]) -> None:
        self._body: Callable[[], Any] | None = body
        self._on_late = on_late
        self._lock = threading.Lock()
        self._abandoned = False
        self.waiter = ThreadWaiter()
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the body in the worker's thread."""
        body, self._body = self._body, None
        assert body is not None
        try:
            self.result = body()
        except BaseException as error:
            self.error = error
        with self._lock:
            self.done = True
            late = self._abandoned
        if late:
            workers.returned()
            self._on_late(self)
        else:
            self.waiter.wake()

    def abandon(self) -> bool:
        """Stop waiting: True when the body still runs and its outcome will be dropped."""
        with self._lock:
            self._abandoned = not self.done
        if self._abandoned:
            workers.left_behind()
        return self._abandoned

    def outcome(self) -> Any:
        """The result of a body that is done, or its own exception raised."""
        if self.error is None:
            return self.result
        try:
            raise self.error
        finally:
            self.error = None  # else error → traceback → frame → job → error would be a cycle


class Workers:
    """The idle worker threads of this process and the count of abandoned ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self.abandoned = 0

    def start(self, job: Job) -> None:
        """Run `job` in a worker, a new one when none is idle."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self)
            worker.hand(job)
            worker.start()
        else:
            worker.hand(job)

    def rest(self, worker: _Worker) -> bool:
        """A worker has nothing to do: True when it shall stay for the next job."""
        with self._lock:
            stays = len(self._idle) < MAX_IDLE
            if stays:
                self._idle.append(worker)
        return stays

    def idle(self) -> set[int]:
        """Identifiers of the threads that have nothing to do."""
        with self._lock:
            return {worker.ident for worker in self._idle if worker.ident is not None}

    def left_behind(self) -> None:
        """Count one more abandoned worker."""
        with self._lock:
            self.abandoned += 1

    def returned(self) -> None:
        """An abandoned worker has come to its end."""
        with self._lock:
            self.abandoned -= 1

    def forget(self) -> None:
        """After a fork the threads are gone."""
        self._lock = threading.Lock()
        self._idle = []
        self.abandoned = 0


class _Worker(threading.Thread):
    """Runs one job after another."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(name="guarded-worker", daemon=True)
        self._workers = workers
        self._gate = threading.Lock()
        self._gate.acquire()
        self._job: Job | None = None

    def hand(self, job: Job) -> None:
        self._job = job
        self._gate.release()

    def run(self) -> None:
        stays = True
        while stays:
            self._gate.acquire()
            job, self._job = self._job, None
            assert job is not None
            job.run()
            del job  # else the last result would live until the next job
            stays = self._workers.rest(self)


workers = Workers()
after_fork(workers, Workers.forget)
