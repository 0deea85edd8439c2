"""The simulated engine, part of llmgw."""
