"""What a model's headers say of it, whatever format they are in."""

from __future__ import annotations

from libs.events.headers import CACHE_ELEMENT_BYTES
from libs.events.headers import AttentionLayers as Layers
from libs.events.headers import ExpertMixture as Experts
from libs.events.headers import ModelHeaders as Facts
from libs.events.headers import WeightBytes as Weights

__all__ = ["CACHE_ELEMENT_BYTES", "MAX_LAYERS", "Experts", "Facts", "Layers", "Unreadable", "Weights"]

MAX_LAYERS = 4096
"""More layers than this are a mistake in a header, not a model."""


class Unreadable(Exception):
    """The headers are not what they should be; the message says what was found and what to do."""
