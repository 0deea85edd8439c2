"""The outside world of accounting."""
