"""Policies, targets and settings from YAML files, texts and mappings (extra ``config``)."""

from __future__ import annotations

from guarded._core.extras import missing

try:
    from guarded.config.document import Place, Problem
    from guarded.config.loader import Loaded, check, load, problems_of
    from guarded.config.report import Change, Diff
    from guarded.config.schema import json_schema
    from guarded.config.watch import Watcher, reload_on_signal
except ModuleNotFoundError as error:
    raise missing(error, "a config file", "guarded[config]") from error

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
