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

    __slots__ = ("_body", "_lock", "_on_late", "done", "error", "result", "waiter")

    def __init__(
        self, body: Callable[[], Any], on_late: Callable[[Job], object], waiter: ThreadWaiter | None = None
    ) -> None:
        self._body: Callable[[], Any] | None = body
        self._on_late = on_late
        self._lock = threading.Lock()
        self.waiter = waiter or ThreadWaiter()
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
        if self in workers.left_behind:
            workers.left_behind.discard(self)
            self._on_late(self)
        else:
            self.waiter.wake()

    def abandon(self) -> bool:
        """Stop waiting: True when the body still runs and its outcome will be dropped."""
        with self._lock:
            if not self.done:
                workers.left_behind.add(self)
            return not self.done

    def outcome(self) -> Any:
        """The result of a body that is done, or its own exception raised."""
        if self.error is None:
            return self.result
        try:
            raise self.error
        finally:
            self.error = None  # else error → traceback → frame → job → error would be a cycle


class Workers:
    """The idle worker threads of this process, and the jobs that nobody waits for any more.

    Each change is one step of the interpreter: no lock that a finalizer could take again, no count that a signal
    handler could put wrong by raising.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self.left_behind: set[Job] = set()

    @property
    def abandoned(self) -> int:
        """How many jobs still run though their callers have left."""
        return len(self.left_behind)

    def start(self, job: Job) -> None:
        """Run `job` in a worker, a new one when none is idle."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self)
        worker.hand(job)
        if worker.ident is None:
            worker.start()

    def rest(self, worker: _Worker) -> bool:
        """A worker has nothing to do: True when it shall stay for the next job."""
        stays = len(self._idle) < MAX_IDLE
        if stays:
            self._idle.append(worker)
        return stays

    def idle(self) -> set[int]:
        """Identifiers of the threads that have nothing to do."""
        return {worker.ident for worker in tuple(self._idle) if worker.ident is not None}

    def forget(self) -> None:
        """After a fork the threads are gone."""
        self._idle = []
        self.left_behind = set()


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
