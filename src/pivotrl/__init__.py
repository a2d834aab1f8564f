"""PivotRL: make a language model a better agent from expert trajectories, at the turns where it pays.

Importing this package does nothing and pulls in no torch; each name below is loaded when it is first used.
"""

from __future__ import annotations

__version__ = "0.1.0"
