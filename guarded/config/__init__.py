"""Policies, targets and settings from YAML files, texts and mappings (extra ``config``)."""

from __future__ import annotations

try:
    import pydantic as _pydantic  # noqa: F401
    import yaml as _yaml  # noqa: F401
except ImportError as error:
    message = f"{error}: config files need more packages, pip install 'guarded[config]'"
    raise ImportError(message, name=error.name) from error

from guarded.config.document import Place, Problem
from guarded.config.loader import Loaded, check, load, problems_of
from guarded.config.report import Change, Diff
from guarded.config.schema import json_schema
from guarded.config.watch import Watcher, reload_on_signal

__all__ = [
    "Change",
    "Diff",
    "Loaded",
    "Place",
    "Problem",
    "Watcher",
    "check",
    "json_schema",
    "load",
    "problems_of",
    "reload_on_signal",
]
