"""What keeps a service from starting and is no mistake of the program's."""

from __future__ import annotations


class CannotStart(Exception):
    """Its text says in a sentence what is wrong and what to do; it is logged without a traceback."""
