"""Targets: policies on functions without touching their code."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import guarded
from guarded import registry
from guarded.config import problems_of
from guarded.config.targets import Target

SHOP = '''
from functools import partial

def charge(amount):
    """Charge."""
    return amount

def refund(amount):
    return -amount

def _private(amount):
    return amount

class Service:
    def charge(self, amount):
        return amount

    async def refund(self, amount):
        return -amount

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def fee():
        return 1

    def _hidden(self):
        return 0

class Special(Service):
    pass
'''
POLICIES = """\
policies:
  quick: {deadline: {seconds: 1s, mode: cooperative}}
  slow: {deadline: {seconds: 9s, mode: cooperative}}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of its own, imported, and gone afterwards."""
    (tmp_path / "tshop").mkdir()
    (tmp_path / "tshop" / "__init__.py").write_text("")
    (tmp_path / "tshop" / "pay.py").write_text(SHOP)
    (tmp_path / "tshop" / "later.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("tshop.pay")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tshop"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No target outlives its test."""
    yield
    if registry.config is not None:
        registry.config.close()  # type: ignore[attr-defined]


def load(**targets: str) -> None:
    """Put targets in force; `tshop__pay` stands for the module, two underscores for a dot."""
    lines = "".join(f"  {pattern!r}: {policy}\n" for pattern, policy in targets.items())
    guarded.load(f"{POLICIES}targets:\n{lines}")


def names(fn: object) -> list[str | None]:
    """The names of the layers on a callable."""
    return [layer.name for layer in getattr(fn, "layers", ())]


def test_an_exact_pattern_guards_one_function(shop: ModuleType) -> None:
    """Functions, methods, class and static methods are guarded in place, the rest is as it was."""
    load(
        **{
            "tshop.pay:charge": "quick",
            "tshop.pay:Service.charge": "slow",
            "tshop.pay:Service.make": "quick",
            "tshop.pay:Service.fee": "slow",
        }
    )
    assert names(shop.charge) == ["quick"]
    assert names(shop.Service.charge) == ["slow"]
    assert names(shop.Service.make) == ["quick"]
    assert names(shop.Service.fee) == ["slow"]
    assert names(shop.refund) == []
    assert shop.charge.__doc__ == "Charge."
    assert (shop.charge(5), shop.Service().charge(6), shop.Service.fee()) == (5, 6, 1)
    assert isinstance(shop.Service.make(), shop.Service)


def test_wildcards_reach_what_is_public_and_defined_there(shop: ModuleType) -> None:
    """One star is one step; imported names, private ones and inherited methods are left alone."""
    load(**{"tshop.*:*": "quick", "tshop.pay:*.refund": "slow"})
    assert names(shop.charge) == names(shop.refund) == ["quick"]
    assert names(shop.Service.refund) == ["slow"]
    assert names(shop.Service.charge) == []
    assert names(shop._private) == []
    assert names(shop.partial) == []
    assert "refund" not in vars(shop.Special)


def test_the_more_specific_pattern_wins(shop: ModuleType) -> None:
    """Exact beats wildcard, longer beats shorter, whatever the order."""
    load(**{"tshop.pay:Service.*": "quick", "tshop.pay:Service.charge": "slow"})
    assert names(shop.Service.charge) == ["slow"]
    assert names(shop.Service.refund) == ["quick"]
    load(**{"tshop.pay:Service.re*": "slow", "tshop.*:*.*": "quick"})
    assert names(shop.Service.refund) == ["slow"]
    assert names(shop.Service.charge) == ["quick"]


def test_ranks() -> None:
    """The rule itself."""
    order = ["a.b:C.d", "a.b:C.*", "a.*:C.*", "a.*:*"]
    ranks = [Target(pattern, "p").rank() for pattern in order]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


def test_an_inherited_method_is_guarded_on_the_class_that_was_named(shop: ModuleType) -> None:
    """The base class stays as it is, and the method goes when the target does."""
    load(**{"tshop.pay:Special.charge": "quick"})
    assert names(shop.Special.charge) == ["quick"]
    assert names(shop.Service.charge) == []
    assert shop.Special().charge(3) == 3
    registry.config.close()  # type: ignore[union-attr]
    assert "charge" not in vars(shop.Special)


def test_a_reload_rebinds_and_unbinds(shop: ModuleType) -> None:
    """The function itself comes back; whoever kept the guarded one has a layer that does nothing."""
    plain = shop.charge
    load(**{"tshop.pay:charge": "quick", "tshop.pay:refund": "quick"})
    kept = shop.charge
    load(**{"tshop.pay:refund": "slow"})
    assert shop.charge is plain
    assert names(kept) == []
    assert kept(5) == 5
    assert names(shop.refund) == ["slow"]


def test_a_function_wrapped_since_is_not_torn_out(shop: ModuleType) -> None:
    """Somebody else's wrapper around the guarded function stays."""
    load(**{"tshop.pay:charge": "quick"})
    guarded_charge = shop.charge

    def other(amount: int) -> int:
        return int(guarded_charge(amount)) + 1

    shop.charge = other
    load(**{"tshop.pay:refund": "slow"})
    assert shop.charge is other
    assert shop.charge(1) == 2


def test_modules_imported_later_are_bound_on_import(shop: ModuleType) -> None:
    """Exact and by wildcard; the loader keeps its type."""
    load(**{"tshop.later:charge": "quick", "tshop.*:Service.*": "slow"})
    later = importlib.import_module("tshop.later")
    assert names(later.charge) == ["quick"]
    assert names(later.Service.charge) == ["slow"]
    assert type(later.__spec__.loader).__name__ == "SourceFileLoader"


def test_modules_of_one_loader_are_bound_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a zip archive are: each function gets its layer once."""
    with zipfile.ZipFile(tmp_path / "tzip.zip", "w") as archive:
        for name in ("tzip_a", "tzip_b", "tzip_c"):
            archive.writestr(f"{name}.py", "def f(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "tzip.zip"))
    load(**{"tzip_a:f": "quick", "tzip_b:f": "quick", "tzip_c:f": "quick"})
    modules = [importlib.import_module(name) for name in ("tzip_a", "tzip_b", "tzip_c")]
    assert [names(module.f) for module in modules] == [["quick"], ["quick"], ["quick"]]
    for module in modules:
        del sys.modules[module.__name__]


def test_a_module_that_is_reloaded_is_bound_again(shop: ModuleType) -> None:
    """importlib.reload makes new functions."""
    load(**{"tshop.pay:charge": "quick"})
    importlib.reload(shop)
    assert names(shop.charge) == ["quick"]


def test_the_import_hook_goes_with_the_last_target(shop: ModuleType) -> None:
    """Nothing is left in sys.meta_path."""
    before = list(sys.meta_path)
    load(**{"tshop.pay:charge": "quick"})
    assert len(sys.meta_path) == len(before) + 1
    registry.config.close()  # type: ignore[union-attr]
    assert sys.meta_path == before


def test_check_names_targets_that_meet_no_function(shop: ModuleType) -> None:
    """Missing members and things that are no functions, of modules that are imported."""
    load(**{"tshop.pay:chrage": "quick", "tshop.pay:Service": "quick", "tshop.notyet:f": "quick"})
    with pytest.raises(guarded.ConfigError) as caught:
        guarded.check()
    texts = [str(problem) for problem in caught.value.problems]  # other tests' functions may wait for names too
    assert [text for text in texts if text.startswith("<text>")] == [
        "<text>:5:3: targets[\"tshop.pay:chrage\"]: 'tshop.pay' has no 'chrage' (did you mean 'charge'?)",
        "<text>:6:3: targets[\"tshop.pay:Service\"]: 'tshop.pay:Service' is no function",
    ]


def test_check_names_targets_that_cannot_be_guarded() -> None:
    """Types written in C do not take attributes; that is no traceback."""
    load(**{"datetime:date.isoformat": "quick"})
    with pytest.raises(guarded.ConfigError, match=r"'datetime:date.isoformat' cannot be guarded: "):
        guarded.check()


def test_an_allow_list_holds_for_targets() -> None:
    """A file from elsewhere puts nothing on what it may not name, wildcards included."""
    found = problems_of(
        "policies: {p: {limit: 5}}\n"
        "targets: {'shop:f': p, 'shop.pay:f': p, 'shop.*:f': p, 'shopper:f': p, 'tshop.pay:f': p, 'a.*.b:f': p}\n",
        allow=["shop", "a.b"],
    )
    assert [(problem.path, problem.message) for problem in found] == [
        ('targets["shopper:f"]', "module 'shopper' is not on the allow-list"),
        ('targets["tshop.pay:f"]', "module 'tshop.pay' is not on the allow-list"),
        ('targets["a.*.b:f"]', "module 'a.*.b' is not on the allow-list"),
    ]


@pytest.mark.parametrize("pattern", ["*:f", "*.pay:f", "a.b", "a.b:", ":f", "a b:f", "a.b:c:d", "a..b:f", "a.b:c."])
def test_what_is_no_pattern(pattern: str) -> None:
    """Above all a star in place of a top-level package, which would reach everything that is imported."""
    with pytest.raises(guarded.ConfigError, match="is no pattern of a target"):
        load(**{pattern: "quick"})
