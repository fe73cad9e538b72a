"""A batch in plain code: the reader's own thread pulls the items, worker threads or an executor run them.

The source belongs to the reader's thread, as a database cursor does; so items are pulled a little ahead, up to the
window, for the workers to go on while the reader is busy. Nothing runs any more when the reader is told of the end.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from math import inf
from typing import Any, Generic, TypeVar

from guarded._batch.course import WAITING, Course
from guarded._batch.offload import call_plainly, submit_to
from guarded._batch.plan import Plan, context_of_bodies
from guarded._batch.settled import Settled, cut_off, failure, success
from guarded._batch.source import Source
from guarded._batch.window import Window
from guarded._core import waiters
from guarded._core.waiters import ThreadWaiter
from guarded._core.workers import Job, workers

R = TypeVar("R")


class ThreadBatch(Generic[R]):
    """One batch and its one reader; `read` drives it."""

    def __init__(self, plan: Plan, window: Window[R]) -> None:
        items: Any = plan.items
        self._plan = plan
        self._window = window
        self._source: Source[Any] = Source(items)
        self._caller = plan.caller()
        self._course = Course(plan.name, plan.errors == "raise", window, self._caller.until)
        self._context, self._token = context_of_bodies(plan.caller())
        self._reports = plan.reports()
        self._lock = threading.Lock()  # guards all that follows, the course and the window
        self._queue: deque[tuple[Any, int]] = deque()  # pulled, not yet begun
        self._active = 0  # threads at work
        self._pulling = True
        self._reader: ThreadWaiter | None = None
        self._untold: deque[bool] = deque()  # ends that `reports` has yet to hear of

    def read(self) -> Generator[Settled[R], None, None]:
        """The outcomes, in the order of the window; then the error that ended the batch, if any."""
        refill = False  # for what was read last, so that workers have items while the reader is busy
        try:
            while True:
                self._tell_reports()
                with self._lock:
                    pulls = self._pulls()
                    settled = None if pulls and refill else self._window.take()
                    over = self._over()
                refill = settled is not None
                if settled is not None:
                    yield settled
                elif pulls:
                    self._pull()
                elif over:
                    break
                else:
                    self._wait()
        except BaseException as error:
            with self._lock:
                self._course.interrupted(error)
            raise
        finally:
            last_word = self._leave()
        if last_word is not None:
            raise last_word

    def _pulls(self) -> bool:
        """Under the lock: whether another item is to be taken from the source."""
        return self._pulling and not self._course.stopped and self._window.has_room()

    def _leave(self) -> BaseException | None:
        """Wait until nothing runs any more; gives the error of the batch."""
        try:
            if self._course.stopped:
                self._stop()
            self._wait_for_bodies()
        finally:
            self._pulling = False
            self._close_source()
            self._tell_reports()
            self._reports.close()
        return self._course.farewell()

    def _pull(self) -> None:
        waiters.enter(self._caller, WAITING)
        try:
            item = self._source.next()
        except StopIteration:
            self._pulling = False
            self._close_source()
        except Exception as error:
            self._pulling = False
            with self._lock:
                stop = self._course.source_failed(error)
            if stop:
                self._stop()
            self._close_source()
        else:
            self._launch(item)

    def _close_source(self) -> None:
        try:
            self._source.close()
        except Exception as error:
            with self._lock:
                self._course.close_failed(error)

    def _launch(self, item: Any) -> None:
        """Hand an item to the workers, to one more where they are fewer than may be."""
        with self._lock:
            self._queue.append((item, self._window.start()))
            one_more = self._active < self._plan.concurrency
            self._active += one_more
        if one_more:
            try:
                workers.start(Job(self._work, lambda late: None))
            except Exception:  # there are no more threads to be had
                with self._lock:
                    self._active -= 1
                raise

    def _work(self) -> None:
        """Run items in a worker thread as long as there are any."""
        ended: Settled[R] | BaseException | None = None
        index = -1
        while (job := self._next(index, ended)) is not None:
            item, index = job
            ended = self._run(item, index)

    def _run(self, item: Any, index: int) -> Settled[R] | BaseException:
        try:
            fn, args = self._plan.split(item, index)
            value = self._context.copy().run(call_plainly, self._plan.name, fn, args)
        except Exception as error:
            return failure(error, index)
        except BaseException as error:
            return error
        return success(value, index)

    def _next(self, index: int, ended: Settled[R] | BaseException | None) -> tuple[Any, int] | None:
        """Take the end of one item in and give the next one, in one turn of the lock."""
        token = self._caller.token
        ends = token is not None and token.cancelled
        with self._lock:
            stop = self._take_in(index, ended)
            job = self._queue.popleft() if self._queue and not ends and not self._course.stopped else None
            if job is None:
                self._active -= 1
            reader = self._reader_to_wake()
        if stop:
            self._stop()
        if reader is not None:
            reader.wake()
        return job

    def _take_in(self, index: int, ended: Settled[R] | BaseException | None) -> bool:
        """Under the lock: what the end of an item means; True when it ends the batch."""
        if ended is None:
            return False
        if isinstance(ended, BaseException):
            return self._course.item_crashed(index, ended)
        if self._reports.wanted and not ended.cancelled:
            self._untold.append(ended.ok)
        return self._course.item_ended(ended)

    def _reader_to_wake(self) -> ThreadWaiter | None:
        """Under the lock: the waiting reader, when there is something for it to do."""
        reader, window = self._reader, self._window
        if reader is None:
            return None
        # With some items still queued the workers need no more for now, and the reader need not be woken for each.
        low = len(self._queue) <= self._plan.concurrency // 2
        pulls = low and self._pulls()
        if not (pulls or window.ready or self._untold or self._over()):
            return None
        self._reader = None
        return reader

    def _over(self) -> bool:
        """Under the lock: whether nothing runs, and nothing will."""
        return not self._active and (self._course.stopped or not (self._pulling or self._queue))

    def _wait(self) -> None:
        waiters.refuse_on_loop_thread(self._plan.name)
        reader = ThreadWaiter()
        with self._lock:
            self._reader = reader
            ready = self._reader_to_wake() is not None
        if not ready:
            waiters.wait(self._caller, reader, inf, WAITING)

    def _wait_for_bodies(self) -> None:
        """Neither deadline nor token end this wait: a thread cannot be interrupted. A second Ctrl-C does."""
        with self._lock:
            reader = self._reader = ThreadWaiter()
            waits = self._active > 0
        while waits:
            reader.park(inf)
            with self._lock:
                reader = self._reader = ThreadWaiter()
                waits = self._active > 0

    def _stop(self) -> None:
        """What runs is told to stop; what is queued will not start."""
        self._token.cancel(self._course.reason)
        with self._lock:
            for _, index in self._queue:
                self._course.item_ended(cut_off(index, self._course.reason))
            self._queue.clear()

    def _tell_reports(self) -> None:
        while self._untold:
            self._reports.tell(self._untold.popleft())


class ExecutorBatch(ThreadBatch[R]):
    """The same on an executor of `concurrent.futures`, with at most `concurrency` items on it at once."""

    def __init__(self, plan: Plan, window: Window[R]) -> None:
        super().__init__(plan, window)
        assert plan.executor is not None
        self._submit = submit_to(plan.executor, self._context, self._caller)
        self._futures: set[Future[Any]] = set()

    def _launch(self, item: Any) -> None:
        with self._lock:
            index = self._window.start()
            self._active += 1
        try:
            future = self._submit(*self._plan.split(item, index))
        except Exception as error:  # the executor takes nothing any more
            self._next(index, failure(error, index))
            return
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(functools.partial(self._arrived, index))

    def _arrived(self, index: int, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)
        if future.cancelled():
            ended: Settled[R] | BaseException = cut_off(index, self._course.reason)
        elif (error := future.exception()) is None:
            ended = success(future.result(), index)
        else:
            ended = failure(error, index) if isinstance(error, Exception) else error
        self._next(index, ended)

    def _stop(self) -> None:
        super()._stop()
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            future.cancel()
