"""vLLM, in a Python environment of its own."""
