"""Measurements: what the gateway costs, against the engine directly."""
