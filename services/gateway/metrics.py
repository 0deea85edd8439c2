"""What the gateway measures. Labels are bounded: models are those of the catalog, never what a client wrote."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from .core.usage.engine_usage import TokenUsage

REQUESTS = Counter(
    "llmgw_gateway_requests_total", "Requests answered, by route, model and HTTP status.", ["route", "model", "status"]
)
ERRORS = Counter(
    "llmgw_gateway_errors_total", "Error answers of every path, those about no model included, by status.", ["status"]
)
TOKENS = Counter("llmgw_gateway_tokens_total", "Tokens, by model and kind.", ["model", "kind"])
FIRST_TOKEN = Histogram(
    "llmgw_gateway_first_token_seconds",
    "From the arrival of a streamed request to its first token going out.",
    ["model"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
DURATION = Histogram(
    "llmgw_gateway_duration_seconds",
    "From the arrival of a request to the end of its answer.",
    ["model"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
IN_FLIGHT = Gauge("llmgw_gateway_in_flight", "Requests being answered.", multiprocess_mode="livesum")
RETRIES = Counter(
    "llmgw_gateway_retries_total", "Requests sent to another endpoint, by why the last one failed.", ["model", "reason"]
)
FALLBACKS = Counter(
    "llmgw_gateway_fallbacks_total",
    "Requests put to a model named as fallback, by the model asked and that one.",
    ["model", "fallback"],
)
WAITING = Gauge(
    "llmgw_gateway_waiting", "Requests that wait for a model on demand to start.", multiprocess_mode="livesum"
)
WAKES = Counter(
    "llmgw_gateway_wakes_total",
    "Times the scheduler was told that a model is asked for, by outcome.",
    ["model", "outcome"],
)
BREAKERS_OPEN = Gauge(
    "llmgw_gateway_breakers_open", "Endpoints that get nothing because they failed.", multiprocess_mode="livesum"
)
SPOOL_BACKLOG = Gauge(
    "llmgw_gateway_spool_backlog_bytes", "Usage written down and not yet published.", multiprocess_mode="livesum"
)
SPOOL_UNREADABLE = Gauge(
    "llmgw_gateway_spool_unreadable_lines",
    "Lines of the usage spool that could not be read back and are kept in its file unreadable.",
    multiprocess_mode="livesum",
)
IMPLAUSIBLE = Counter(
    "llmgw_gateway_implausible_usage_total",
    "Answers whose engine said it used what cannot be; counted here.",
    ["model"],
)
CUT = Counter("llmgw_gateway_cut_total", "Requests found unfinished when a worker was started again.")
CHECKS = Counter("llmgw_gateway_checks_total", "Checks sent to the guard, by what came of them.", ["outcome"])
VERDICT = Histogram(
    "llmgw_gateway_verdict_seconds",
    "Waiting for the guard's verdict, where a policy enforces.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 3),
)


class _Account:
    """What was counted for one (route, model, status) since the last flush.

    With several processes every count is a write to a mapped file; counters are written once a second instead.
    """

    __slots__ = (
        *("_cached", "_completion", "_prompt", "_requests", "cached", "completion", "duration", "first_token"),
        *("prompt", "requests"),
    )

    def __init__(self, route: str, model: str, status: int) -> None:
        self._requests = REQUESTS.labels(route, model, str(status))
        self._prompt = TOKENS.labels(model, "prompt")
        self._cached = TOKENS.labels(model, "cached")
        self._completion = TOKENS.labels(model, "completion")
        self.duration = DURATION.labels(model)
        self.first_token = FIRST_TOKEN.labels(model)
        self.requests = self.prompt = self.cached = self.completion = 0

    def flush(self) -> None:
        if self.requests:
            self._requests.inc(self.requests)
            self._prompt.inc(self.prompt)
            self._cached.inc(self.cached)
            self._completion.inc(self.completion)
            self.requests = self.prompt = self.cached = self.completion = 0


_accounts: dict[tuple[str, str, int], _Account] = {}


def finished(
    route: str, model: str, status: int, seconds: float, first_token_s: float | None, used: TokenUsage
) -> None:
    """A request about a model of the catalog ended."""
    account = _accounts.get((route, model, status))
    if account is None:
        account = _accounts[route, model, status] = _Account(route, model, status)
    account.requests += 1
    account.prompt += used.prompt
    account.cached += used.cached
    account.completion += used.completion
    account.duration.observe(seconds)
    if first_token_s is not None:
        account.first_token.observe(first_token_s)


def flush() -> None:
    """Let the counters show what was counted."""
    for account in _accounts.values():
        account.flush()
