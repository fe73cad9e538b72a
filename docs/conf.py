"""How the documentation is built: ``sphinx-build -W -b html docs docs/_build``."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE / "_ext"), str(_HERE.parent)]

project = "guarded"
author = "guarded contributors"
copyright = "guarded contributors"
try:
    release = importlib.metadata.version("guarded")
except importlib.metadata.PackageNotFoundError:  # built from a checkout that is not installed
    release = "dev"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "guarded_tables"]
exclude_patterns = ["_build", "_ext"]
html_theme = "furo"
html_title = f"guarded {release}"
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings put names between single backticks
add_module_names = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 100
