"""Connections to one Redis or Valkey server, and scripts run on it: one round trip each.

Threads share one set of connections, the tasks of each event loop another. Nothing is tried twice but a script that the
server has forgotten: what a step did when its answer was lost, nobody knows. Each step ends after `timeout`, or sooner
at the deadline of the running call. The connections of a loop are closed when it shuts down its generators, as
``asyncio.run`` does. Times are seconds.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, TypeAlias, cast

import redis
from redis.asyncio import ConnectionPool as AsyncPool
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded.stores._patience import allowance
from guarded.stores.health import Shortened

Word: TypeAlias = str | bytes | int
_ASYNC_CONNECTIONS = 64  # of each event loop; further tasks wait for one
_FRESH = 0.05  # a connection used so recently is not asked whether the server has closed it


class Script:
    """One Lua file; see its header for keys, arguments and reply."""

    __slots__ = ("sha", "text")

    def __init__(self, name: str) -> None:
        self.text: str = files("guarded.stores").joinpath("lua", f"{name}.lua").read_text("utf-8")
        self.sha: str = sha1(self.text.encode(), usedforsecurity=False).hexdigest()  # the name Redis gives to a script

    def by_sha(self, keys: Sequence[str], args: Sequence[Word]) -> tuple[Word, ...]:
        """The command for a server that knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def whole(self, keys: Sequence[str], args: Sequence[Word]) -> tuple[Word, ...]:
        """The command for a server that does not."""
        return ("EVAL", self.text, len(keys), *keys, *args)


class Link:
    """The way to one server.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it.
        timeout: seconds after which a step, or making a connection, has failed.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.timeout = timeout
        self._url = url
        self._options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "decode_responses": False,
            "protocol": 2,  # saves the round trips of a handshake
        }
        self._options |= _without_driver_info()
        self._maker = redis.ConnectionPool.from_url(url, **self._options)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopLink] = {}
        self._forget()
        after_fork(self, Link._forget)

    def _forget(self) -> None:
        self._idle: deque[tuple[float, Any]] = deque()
        self._loops.clear()

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """One step, blocking this thread; raises what redis-py raises, or `Shortened`."""
        timeout, cut = allowance(self.timeout)
        connection = self._connect()
        try:
            try:
                reply = _talk(connection, script.by_sha(keys, args), timeout if cut else None)
            except NoScriptError:
                reply = _talk(connection, script.whole(keys, args), timeout if cut else None)
        except ResponseError:
            self._idle.append((clock.monotonic(), connection))
            raise
        except RedisTimeout as error:
            connection.disconnect()
            if cut:
                raise Shortened from error
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append((clock.monotonic(), connection))
        return reply

    async def run_async(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> Any:
        """The same for the running task."""
        loop = asyncio.get_running_loop()
        link = self._loops.get(loop)
        if link is None:
            link = await self._new_loop(loop)
        timeout, cut = allowance(self.timeout)
        try:
            return await link.run(script, keys, args, timeout)
        except RedisTimeout as error:
            if cut:
                raise Shortened from error
            raise

    def _connect(self) -> Any:
        while True:
            try:
                used, connection = self._idle.pop()
            except IndexError:
                connection = cast("Any", self._maker).make_connection()
                connection.connect()
                return connection
            if clock.monotonic() - used < _FRESH or not _is_stale(connection):
                return connection
            connection.disconnect()

    async def _new_loop(self, loop: asyncio.AbstractEventLoop) -> _LoopLink:
        for dead in [known for known in self._loops if known.is_closed()]:
            del self._loops[dead]
        # The client's own time-out of a socket would make a task for each command.
        maker = AsyncPool.from_url(self._url, **self._options | {"socket_timeout": None})
        link = self._loops[loop] = _LoopLink(maker, self.timeout)
        link.lifetime = _until_the_end(self, loop, link)
        await link.lifetime.asend(None)  # the loop closes it when it shuts down
        return link

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has no connections any more."""
        self._loops.pop(loop, None)

    def close(self) -> None:
        """Close what threads have left; a loop looks after its own."""
        while self._idle:
            self._idle.pop()[1].disconnect()


class _LoopLink:
    """The connections of one event loop."""

    def __init__(self, maker: AsyncPool, timeout: float) -> None:
        self._maker = maker
        self._timeout = timeout
        self._idle: list[tuple[float, Any]] = []
        self._free = asyncio.Semaphore(_ASYNC_CONNECTIONS)
        self.lifetime: AsyncGenerator[None, None] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Word], allowed: float) -> Any:
        """One step."""
        if self._free.locked():
            asked = clock.monotonic()
            await self._free.acquire()
            if clock.monotonic() - asked > self._timeout:
                self._free.release()
                raise RedisTimeout("no connection came free in time")
        else:
            await self._free.acquire()
        try:
            return await self._run(script, keys, args, allowed)
        finally:
            self._free.release()

    async def _run(self, script: Script, keys: Sequence[str], args: Sequence[Word], allowed: float) -> Any:
        connection = await self._connect()
        try:
            async with asyncio.timeout(allowed):
                try:
                    reply = await _talk_async(connection, script.by_sha(keys, args))
                except NoScriptError:
                    reply = await _talk_async(connection, script.whole(keys, args))
        except ResponseError:
            self._idle.append((clock.monotonic(), connection))
            raise
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise RedisTimeout("no answer in time") from error
            raise
        self._idle.append((clock.monotonic(), connection))
        return reply

    async def _connect(self) -> Any:
        while self._idle:
            used, connection = self._idle.pop()
            if clock.monotonic() - used < _FRESH or not await _is_stale_async(connection):
                return connection
            await connection.disconnect(nowait=True)
        fresh: Any = self._maker.make_connection()  # type: ignore[no-untyped-call]
        try:
            await fresh.connect()
        except BaseException:
            await fresh.disconnect(nowait=True)
            raise
        return fresh

    async def close(self) -> None:
        """Close what is idle; a step under way closes or leaves its own."""
        while self._idle:
            await self._idle.pop()[1].disconnect()


async def _until_the_end(link: Link, loop: asyncio.AbstractEventLoop, own: _LoopLink) -> AsyncGenerator[None, None]:
    """Closes the connections of a loop when the loop shuts down its generators."""
    try:
        yield
    finally:
        link.drop(loop)
        await own.close()


def _talk(connection: Any, command: tuple[Word, ...], timeout: float | None) -> Any:
    connection.send_command(*command)
    if timeout is not None and not connection.can_read(timeout):
        raise RedisTimeout("no answer before the deadline")
    return connection.read_response()


async def _talk_async(connection: Any, command: tuple[Word, ...]) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


def _is_stale(connection: Any) -> bool:
    """Whether the server has closed it, or owes nothing and yet has something to say."""
    try:
        return bool(connection.can_read())
    except (RedisError, OSError):
        return True


async def _is_stale_async(connection: Any) -> bool:
    probe = getattr(connection, "can_read", None) or connection.can_read_destructive
    for _ in range(2):
        await asyncio.sleep(0)  # a loop that has been at rest has not heard of it yet
    try:
        return bool(await probe())
    except (RedisError, OSError):
        return True


def _without_driver_info() -> dict[str, Any]:
    """Options that keep redis-py from introducing itself, which would take two round trips."""
    parameters = inspect.signature(AbstractConnection.__init__).parameters
    return {"driver_info": None} if "driver_info" in parameters else {"lib_name": None, "lib_version": None}
