"""The manual: pages generated from the code (``python -m tests.docs`` writes them), and checks of all pages."""
