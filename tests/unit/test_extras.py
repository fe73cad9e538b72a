"""A part whose package is not installed says what to install."""

from __future__ import annotations

from guarded._core.extras import missing


def test_the_message_says_what_is_missing_and_what_to_install() -> None:
    """By the package, not by the module inside it that was asked for; and code that looks at the name still can."""
    error = missing(ModuleNotFoundError("No module named 'httpx.x'", name="httpx.x"), "the client", "guarded[httpx]")
    assert str(error) == "the client needs httpx, which is not installed: pip install 'guarded[httpx]'"
    assert error.name == "httpx.x"
