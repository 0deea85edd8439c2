"""What tests and demonstrations need: real servers on free ports, a proxy that breaks, a simulated engine."""

from .waiting import eventually

__all__ = ["eventually"]
