"""The payment service: plain code, guarded from outside by guarded.yaml."""

from __future__ import annotations


class PaymentService:
    """Charges orders at a gateway that fails at first."""

    def __init__(self, failures: int = 1) -> None:
        self.calls = 0
        self.failures = failures

    def charge(self, merchant_id: str, order_id: str, amount: int) -> dict[str, object]:
        """Charge one order; the first calls find no connection."""
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("the gateway does not answer")
        return {"merchant": merchant_id, "order": order_id, "charged": amount, "call": self.calls}
