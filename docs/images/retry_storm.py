"""Draws retry_storm.png: one outage of six seconds, and how four stacks take it. Needs ``guarded[cli,plot]``.

    python docs/images/retry_storm.py

The service has room for 10 requests at once and answers in 50 ms; 100 calls arrive each second, and each attempt has
250 ms. So it could serve twice the load - until retries multiply it.
"""

from __future__ import annotations

from pathlib import Path

from guarded import RetryBudget, deadline, events, limit, retry
from guarded._core.policy import Policy
from guarded.cli.plots import draw
from guarded.cli.simulation import Load, simulate

LOAD = Load(rps=100, latency=(0.03, 0.07), duration=45, capacity=10, outage=(8, 14))


def stacks() -> dict[str, tuple[Policy, ...]]:
    """What is compared, outermost layer first."""
    again = retry(retries=3, base="50ms")
    thrifty = retry(retries=3, base="50ms", budget=RetryBudget(0.1))
    return {
        "retries alone": (again, deadline("250ms")),
        "retries with a budget of 10 %": (thrifty, deadline("250ms")),
        "limit(8) inside retry": (again, limit(8, max_queue=40), deadline("250ms")),
        "limit(8) outside retry": (limit(8, max_queue=40), again, deadline("250ms")),
    }


def main() -> None:
    """Simulate, say what came of it, and draw."""
    events.set_level("OFF")
    outcomes = {name: simulate(layers, LOAD) for name, layers in stacks().items()}
    for name, outcome in outcomes.items():
        lost = outcome.failed + outcome.out_of_time + outcome.unfinished
        refused = sum(outcome.refused.values())
        print(
            f"{name:32} served {outcome.served / outcome.offered:6.1%}   refused {refused:5}   lost {lost:5}"
            f"   requests per call {outcome.requests / outcome.offered:.2f}   most at once {outcome.peak}"
        )
    draw(outcomes, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
