"""A whole cluster under mixed load while its parts are killed and frozen at times a seed decides; then everything
its clients saw is compared with the ledger, request by request. ``python -m tests.chaos SEED MINUTES``."""
