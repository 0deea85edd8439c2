"""The scheduler's decisions: pure, so that any of them can be judged again on the log it was made from."""
