"""What the bus library measures."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

APPENDED = Counter("llmgw_bus_appended_total", "Messages stored, by tag.", ["tag"])
APPEND_SECONDS = Histogram(
    "llmgw_bus_append_seconds",
    "From asking the bus to store a message to its acknowledgement.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5, 15),
)
HANDLED = Counter(
    "llmgw_bus_handled_total", "Messages of durable consumers, by what became of them.", ["consumer", "outcome"]
)
WENT_BACK = Counter(
    "llmgw_bus_went_back_total",
    "Streams that were found made anew or put back from a copy while they were read.",
    ["stream"],
)
SKIPPED = Counter("llmgw_bus_skipped_total", "Messages a projection does not know or cannot read.", ["reason"])
