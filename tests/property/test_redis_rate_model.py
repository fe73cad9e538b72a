"""The rate scripts against the meters of one process: the same answers to the same questions, to the microsecond.

The scripts run on a real server, with the one line that reads its clock taken out: the test says what time it is.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from guarded.policies._rate.core import Meter
from guarded.policies._rate.meters import make_meter
from guarded.stores import open_store
from guarded.stores._redis import rates
from guarded.stores._redis.link import Script
from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule, Refused

BUDGET = Budget("api")
READS_CLOCK = "redis.call('TIME')"
START = 1_800_000_000_000_000
MS = 1000


@dataclass
class Told:
    """Rates on a server that is told the time, in microseconds."""

    rates: Any
    set_time: Callable[[int], object]


@pytest.fixture
def told(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """The scripts read a key in place of the clock."""
    prefix = uuid.uuid4().hex
    for name in ("_SLIDING", "_FIXED", "_GCRA", "_PAUSE"):
        script = Script({"_SLIDING": "rate_sliding", "_FIXED": "rate_fixed"}.get(name, f"rate{name.lower()}"))
        assert script.text.count(READS_CLOCK) == 1
        script.text = script.text.replace(READS_CLOCK, f"redis.call('LRANGE', '{prefix}now', 0, 1)")
        script.text = script.text.replace("redis.call('PEXPIRE',", "tostring(")  # which would go by the real clock
        script.sha = "0" * 40  # unknown, so that the text is sent
        monkeypatch.setattr(rates, name, script)
    store = open_store(valkey.url, timeout=5.0, prefix=prefix)
    with valkey.client() as client:

        def set_time(now: int) -> None:
            client.delete(f"{prefix}now")
            client.rpush(f"{prefix}now", now // 1_000_000, now % 1_000_000)

        yield Told(store.rates, set_time)
    store.close()


RULES = [
    RateRule("sliding", ((3, 100_000 * MS),)),
    RateRule("sliding", ((4, 50_000 * MS), (7, 200_000 * MS))),
    RateRule("gcra", ((3, 100_000 * MS),)),
    RateRule("gcra", ((7, 100_000 * MS),), 5),
    RateRule("gcra", ((4, 50_000 * MS), (7, 200_000 * MS))),
    RateRule("leaky", ((7, 100_000 * MS),)),
    RateRule("fixed", ((3, 100_000 * MS),)),
    RateRule("fixed", ((4, 50_000 * MS), (7, 200_000 * MS))),
]


def reference(rule: RateRule) -> Meter:
    """The meter of one process; its time 0 is that of the server."""
    return make_meter(rule.algorithm, rule.quotas, rule.burst, lambda: 0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.shape}-{rule.burst}")
@pytest.mark.parametrize("seed", range(6))
def test_same_answers_as_in_one_process(told: Told, rule: RateRule, seed: int) -> None:
    """Admissions, refusals with their exact retry-after, free units, corrections up and down."""
    chance = random.Random(seed)
    meter, now = reference(rule), START + chance.randrange(10**6)
    most = min(count for count, _ in rule.quotas) if rule.burst is None else rule.burst
    taken: list[list[Any]] = []
    refused = 0
    for _ in range(120):
        now += chance.choice([0, 1, chance.randrange(2_000), chance.randrange(40_000), chance.randrange(150_000)])
        told.set_time(now)
        cost, ns = chance.randint(1, most), now * 1000
        if chance.random() < 0.15 and taken:
            correct(told, rule, meter, ns, chance.choice(taken), chance)
        elif chance.random() < 0.15:
            free, delay = told.rates.look(rule, BUDGET, cost)
            assert (free, us(delay)) == (meter.free(ns), microseconds(meter.earliest(ns, cost) - ns))
        else:
            answer, mark = told.rates.take(rule, BUDGET, cost, 0.0), meter.take(ns, cost)
            if mark is None:
                refused += 1
                assert isinstance(answer, Refused)
                assert us(answer.retry_after) == microseconds(meter.earliest(ns, cost) - ns)
            else:
                assert isinstance(answer, Passed)
                taken.append([answer.mark, mark, cost])
    assert taken
    assert refused


def correct(told: Told, rule: RateRule, meter: Meter, ns: int, entry: list[Any], chance: random.Random) -> None:
    """Count more or less for an admission, in both."""
    mark, own, cost = entry
    if chance.random() < 0.3 and rule.algorithm != "sliding":
        told.rates.correct(rule, BUDGET, mark, cost, 1)
        meter.charge(ns, own, 1)
        return
    if cost:
        units = chance.randint(1, cost)
        told.rates.correct(rule, BUDGET, mark, cost, -units)
        meter.give_back(ns, own, units)
        entry[2] = cost - units


def us(seconds: float) -> int:
    """Whole microseconds."""
    return round(seconds * 1e6)


def microseconds(ns: int) -> int:
    """Rounded up."""
    return -(-ns // 1000)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.shape}-{rule.burst}")
@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_whatever_waiters_do(told: Told, rule: RateRule, seed: int) -> None:
    """Waiters that are late, never come or cancel, and newcomers between them: what passes is what a meter passes."""
    chance = random.Random(seed)
    meter, now = reference(rule), START
    waiting: list[tuple[int, str, int]] = []  # due, mark, cost
    most = min(count for count, _ in rule.quotas) if rule.burst is None else rule.burst
    passed = 0
    for _ in range(150):
        now += chance.choice([0, chance.randrange(3_000), chance.randrange(60_000)])
        told.set_time(now)
        waiting.sort()
        cost = chance.randint(1, most)
        if waiting and waiting[0][0] <= now and chance.random() < 0.8:
            _, mark, cost = waiting.pop(0)
            fate = chance.random()
            if fate < 0.1:
                continue  # it has died
            if fate < 0.2:
                told.rates.correct(rule, BUDGET, mark, cost, -cost)
                continue
            answer = told.rates.confirm(rule, BUDGET, cost, mark)
        else:
            answer = told.rates.take(rule, BUDGET, cost, chance.choice([0.0, inf]))
        if isinstance(answer, Booked):
            assert answer.delay > 0
            waiting.append((now + us(answer.delay), answer.mark, cost))
        elif isinstance(answer, Passed):
            passed += 1
            assert meter.take(now * 1000, cost) is not None, "more than the quota"
    assert passed > 5


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.shape}-{rule.burst}")
def test_a_clock_that_goes_back_stands_still_first(told: Told, rule: RateRule) -> None:
    """Then it goes on; nothing is admitted early, and nothing waits for the old time to come again."""
    told.set_time(START)
    while isinstance(told.rates.take(rule, BUDGET, 1, 0.0), Passed):
        pass
    before = told.rates.take(rule, BUDGET, 1, 0.0)
    told.set_time(START - 3_600_000_000)
    after = told.rates.take(rule, BUDGET, 1, 0.0)
    assert us(after.retry_after) == us(before.retry_after)
    assert isinstance(told.rates.take(rule, BUDGET, 1, inf), Booked)  # what changes the state notes the time, too
    later = told.rates.take(rule, BUDGET, 1, 0.0)
    told.set_time(START - 3_600_000_000 + us(later.retry_after))
    assert isinstance(told.rates.take(rule, BUDGET, 1, 0.0), Passed)
