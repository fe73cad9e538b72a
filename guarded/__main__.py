"""``python -m guarded``."""

from __future__ import annotations

from guarded.cli import main

if __name__ == "__main__":
    main()
