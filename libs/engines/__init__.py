"""The engines llmgw can run, and what every service must know of each. Pure: the standard library only."""

from .table import ENGINES, EngineName, ForeignEngineName, planned, reads, traits_of
from .traits import Arguments, Format, Option, Traits, Variables

__all__ = [
    "ENGINES",
    "Arguments",
    "EngineName",
    "ForeignEngineName",
    "Format",
    "Option",
    "Traits",
    "Variables",
    "planned",
    "reads",
    "traits_of",
]
