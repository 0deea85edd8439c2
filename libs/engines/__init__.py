"""The engines llmgw can run, and what every service must know of each. Pure: the standard library only."""

from .table import ENGINES, planned, reads, traits_of
from .traits import Arguments, Format, Option, Traits, Variables

__all__ = ["ENGINES", "Arguments", "Format", "Option", "Traits", "Variables", "planned", "reads", "traits_of"]
