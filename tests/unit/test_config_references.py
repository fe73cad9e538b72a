"""module:Name references."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from guarded.config.references import BadReference, resolve_reference


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path that leaves a trace when it is imported."""
    (tmp_path / "shopx.py").write_text(
        "import os\nfrom os import system\nopen(__file__ + '.imported', 'w').close()\n"
        "class Declined(Exception): pass\nclass Outer:\n    class Inner(Exception): pass\n"
    )
    (tmp_path / "brokenx.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "needsx.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shopx", "brokenx", "needsx"):
        sys.modules.pop(name, None)
    return tmp_path


def test_names_resolve(shop: Path) -> None:
    """Built-ins by bare name, others by module, also nested."""
    assert resolve_reference("ConnectionError", None) is ConnectionError
    assert resolve_reference("shopx:Declined", None).__name__ == "Declined"
    assert resolve_reference("shopx:Outer.Inner", ["shopx"]).__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ConectionError", "'ConectionError' is no built-in exception"),
        ("print", "'print' is no built-in exception"),
        ("shopx:", "'shopx:' is not of the form module:Name"),
        ("shopx:a b", "'shopx:a b' is not of the form module:Name"),
        ("shopx:Declined.__subclasses__", "reaches into a dunder attribute"),
        ("shopx:Declind", "'shopx' has no 'Declind'"),
        ("shopx:os.system", "shopx:os is a module"),
        ("shopy:Declined", "there is no module 'shopy'"),
        ("shopx.deep:Declined", "there is no module 'shopx.deep'"),
        ("brokenx:X", "importing 'brokenx' failed: SystemExit"),
        ("needsx:X", "importing 'needsx' failed: No module named 'nothing_of_that_name'"),
    ],
)
def test_what_cannot_be_resolved(shop: Path, text: str, message: str) -> None:
    """Every way to fail is a BadReference with the reason."""
    with pytest.raises(BadReference) as caught:
        resolve_reference(text, None)
    assert message in str(caught.value)


def test_near_names_are_hinted(shop: Path) -> None:
    """For built-ins and for module members."""
    with pytest.raises(BadReference) as caught:
        resolve_reference("ConectionError", None)
    assert caught.value.hint == "did you mean 'ConnectionError'?"
    with pytest.raises(BadReference) as caught:
        resolve_reference("shopx:Declind", None)
    assert caught.value.hint == "did you mean 'Declined'?"


def test_nothing_outside_the_allow_list_is_imported(shop: Path) -> None:
    """The module is not even looked for."""
    with pytest.raises(BadReference, match="not on the allow-list"):
        resolve_reference("shopx:Declined", ["shop", "other.*"])
    assert not (shop / "shopx.py.imported").exists()


def test_an_allowed_module_is_no_way_to_another(shop: Path) -> None:
    """A name that an allowed module imported from elsewhere is refused."""
    with pytest.raises(BadReference, match="not on the allow-list"):
        resolve_reference("shopx:system", ["shopx"])
