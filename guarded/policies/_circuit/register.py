"""The pybreaker register of a circuit: what it shows, and what its acts do to the circuit."""

from __future__ import annotations

from typing import Any, Final

from guarded._core import clock
from guarded._core.breaker import Reading, RegisteredBreaker, adopt, make
from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.local import LocalCircuit
from guarded.policies._circuit.telling import registered
from guarded.policies._circuit.terms import State

_NS: Final = 1_000_000_000
_NEVER: Final = 2**31 - 1  # fail_max of a register whose circuit does not count failures in a row


def breaker_of(circuit: LocalCircuit) -> RegisteredBreaker:
    """The register, made at first use."""
    teller = circuit.teller
    if teller.breaker is None:
        options = circuit.policy.options
        made = make(
            CircuitRegister(circuit),
            fail_max=options.failures or _NEVER,
            reset_timeout=options.reset_after,
            half_open=options.half_open,
        )
        with circuit, circuit._lock:
            teller.breaker = teller.breaker or made
    return teller.breaker


def adopt_breaker(circuit: LocalCircuit, breaker: Any) -> None:
    """Take over an existing pybreaker: its state, its listeners and its exclusions."""
    teller = circuit.teller
    if teller.breaker is breaker:
        return
    state, failures, opened_at = breaker.current_state, breaker.fail_counter, breaker._state_storage.opened_at
    register = CircuitRegister(circuit)
    teller.breaker = adopt(breaker, register)
    age = 0.0 if opened_at is None else max(0.0, clock.wall() - opened_at.timestamp())
    circuit.intervene(lambda core, now: core.restore(state, now, age=round(age * _NS), in_a_row=failures))
    register.hear(bool(breaker.listeners))


def hand_over_breaker(former: LocalCircuit, circuit: LocalCircuit) -> None:
    """Make the register of `former`, listeners and all, that of the circuit that has taken its place."""
    breaker = former.teller.breaker
    if breaker is not None:
        register = CircuitRegister(circuit)
        circuit.teller.breaker = adopt(breaker, register)
        register.hear(bool(breaker.listeners))


class CircuitRegister:
    """A circuit as its breaker sees it; an isolated one is open for it, a disabled one closed."""

    def __init__(self, circuit: LocalCircuit) -> None:
        self._circuit = circuit

    @property
    def owner(self) -> str:
        """Name of the circuit."""
        return self._circuit.policy.label

    @property
    def state(self) -> State:
        """What the breaker shows."""
        return registered(self._circuit.state)

    def act(self, state: State) -> None:
        """What somebody did with the breaker."""
        if registered(self._circuit.snapshot().state) != state:
            self._circuit.move(state)

    def reading(self) -> Reading:
        """The counters that it shows."""
        return self._circuit.reading()

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that went through pybreaker's own ``call``."""
        self._circuit.count(failed=failed)

    def hear(self, listens: bool) -> None:
        """Whether anybody listens to the breaker has changed."""
        teller = self._circuit.teller

        def switch(core: CircuitCore, now: int) -> None:
            teller.heard = teller.breaker if listens else None

        self._circuit.intervene(switch)
