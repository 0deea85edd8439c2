"""Every event as one sentence a person understands: ``llmgw event tail``, ``llmgw explain``, ``llmgw plan``."""

from . import library, models, nodes, tenancy, usage
from .registry import known, sentence

__all__ = ["known", "library", "models", "nodes", "sentence", "tenancy", "usage"]
