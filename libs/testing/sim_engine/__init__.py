"""A simulated engine: vLLM's HTTP surface, its metrics, its errors and its ways to fail, and no model.

``python -m libs.testing.sim_engine --port P --model NAME --tok-s 500``. It is cheap enough to measure gateways with:
one thread, prebuilt bytes, one write a token. How it counts, so that a test can predict it: a prompt has as many
tokens as it has words; an answer has exactly ``max_tokens`` (64 when the request names none).
"""
