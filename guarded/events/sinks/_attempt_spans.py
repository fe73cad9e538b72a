"""A child span for each attempt: put into compiled stacks below every retry, for as long as somebody wants it.

The span is the current one while the attempt runs, so that what an instrumented client traces hangs below it. It
carries the type of an exception, and its message scrubbed, never the exception itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from guarded._core import chain
from guarded._core.call import Call
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded.events.redact import cause_of


class AttemptSpans:
    """Puts the layers in, and takes them out; calls that run already go on as they began."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._layer = _SpanLayer(tracer)

    def put_in(self) -> None:
        """Give every attempt a span from the next call on."""
        chain.add_rewrite(self._below_retries)

    def take_out(self) -> None:
        """Undo `put_in`."""
        chain.remove_rewrite(self._below_retries)

    def _below_retries(self, of: chain.Chain, layers: tuple[Policy[Any], ...]) -> tuple[Policy[Any], ...]:
        found: list[Policy[Any]] = []
        for layer in layers:
            found.append(layer)
            if layer.kind == "retry":
                found.append(self._layer)
        return tuple(found)


class _SpanLayer(Policy[None]):
    kind = "attempt_span"

    def __init__(self, tracer: trace.Tracer) -> None:
        super().__init__(None)
        self._tracer = tracer

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """A span around `proceed`."""

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            with self._span(call):
                return proceed(call, fn, args, kwargs)

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """The same around an awaited `proceed`."""

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            with self._span(call):
                return await proceed(call, fn, args, kwargs)

        return shell

    @contextmanager
    def _span(self, call: Call) -> Iterator[None]:
        attributes: dict[str, Any] = {
            "guarded.function": call.function,
            "guarded.call_id": call.id,
            "guarded.attempt": call.attempt or 1,
        }
        with self._tracer.start_as_current_span(
            f"{call.function} attempt", attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except Exception as error:
                cause = cause_of(error)
                span.set_attribute("error.type", cause.type)
                span.set_status(trace.StatusCode.ERROR, str(cause))
                raise
