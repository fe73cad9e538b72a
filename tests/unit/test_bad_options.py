"""Every option of every policy, given what it cannot be: a ValueError that names option, value and rule."""

from __future__ import annotations

import datetime
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guarded import RetryBudget, adaptive, circuit, deadline, fallback, hedge, idempotent, limit, rate, registry, retry

FACTORIES: dict[Callable[..., Any], dict[str, Any]] = {
    limit: {"max_concurrent": 3},
    adaptive: {},
    rate: {"spec": "5/s"},
    retry: {},
    deadline: {"seconds": 1},
    circuit: {"name": "gateway"},
    idempotent: {"key": "order_id"},
    fallback: {"value": None},
    hedge: {"after": 0.2},
    RetryBudget: {},
}
"""Each with what it needs."""

JUNK: list[Any] = [
    *(0, -1, 1e-12, 3, 2.5, 10**400, math.nan, math.inf, -math.inf, 1 + 2j, True, False, None),
    *("", "x", "5%", "0.1us", b"x", datetime.timedelta(0), [], (), {}, {"a": 1}, [None], object(), int, len),
]
OPTIONS = [(factory, option) for factory in FACTORIES for option in inspect.signature(factory).parameters]


def is_shown(value: Any, message: str) -> bool:
    """Classes and functions by their name, of a collection the wrong entry, long values by their beginning."""
    if isinstance(value, type) or callable(value):
        return value.__name__ in message
    if isinstance(value, (list, dict)):
        return repr(value) in message or all(repr(entry) in message for entry in value or [()])
    return repr(value)[:12] in message


@pytest.mark.parametrize(("factory", "option"), OPTIONS, ids=lambda given: getattr(given, "__name__", given))
def test_a_wrong_value_is_named_with_its_option(factory: Any, option: str) -> None:
    """Nothing but a ValueError comes of junk, at construction; at least one value of these is junk for every option."""
    refused = 0
    for value in JUNK:
        if factory is retry and option == "retries" and callable(value):
            continue  # @retry, bare
        try:
            with registry.isolated(), warnings.catch_warnings(action="error"):
                factory(**{**FACTORIES[factory], option: value})
        except ValueError as error:
            message = str(error)
            refused += 1
            assert message.startswith((f"{factory.__name__}: ", "retry_budget: ")), message
            assert option in message
            assert is_shown(value, message) or option == "per", message  # of two that do not go together, either
    assert refused or option == "value"  # of a fallback, which is anything


async def asynchronous(*args: object) -> int:
    """A predicate, a key or a hook as it must not be where nobody awaits it."""
    return 1


def generator(*args: object) -> Iterator[int]:
    """Nor one whose answer is an iterator, which is always true."""
    yield 1


@pytest.mark.parametrize("given", [asynchronous, generator])
@pytest.mark.parametrize(("factory", "option"), OPTIONS, ids=lambda given: getattr(given, "__name__", given))
def test_a_function_that_gives_no_answer_is_refused(factory: Any, option: str, given: Callable[..., object]) -> None:
    """At construction, not at the first call; but for what may be async where the guarded function is."""
    if (factory, option) in {(retry, "retries"), (retry, "before_retry"), (fallback, "value")}:
        return
    with registry.isolated(), pytest.raises(ValueError, match=f"^(retry_budget|{factory.__name__}): .*{option}"):
        factory(**{**FACTORIES[factory], option: given})
