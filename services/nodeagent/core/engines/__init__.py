"""What an engine is to the agent; each engine's own part is in ``services/nodeagent/engines``."""

from .base import Engine, Lora, Place, cores_for
from .environment import environment

__all__ = ["Engine", "Lora", "Place", "cores_for", "environment"]
