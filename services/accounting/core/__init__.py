"""The pure part of accounting: who may spend what, and what it costs. No I/O, no clock."""
