"""Options of the simulated engine."""

from __future__ import annotations

from .reasons import AGENT, STATED
from .refused import ANY
from .traits import Arguments, Option

_REFUSED: dict[str, str] = {
    "--model": AGENT,
    "--parallel": f"{STATED} (parallel)",
    "--context-length": f"{STATED} (context_length)",
}

OPTIONS = (
    *(
        Option((f"--{name}",))
        for name in (
            *("tok-s", "ttft-ms", "prefill-tok-s", "load-s", "kv-tokens", "cached-tokens", "reasoning-tokens"),
            *("fail-status", "retry-after-s", "error-after", "cut-after", "hang-after", "die-after"),
            *("thinking", "tools"),
        )
    ),
    *(Option((f"--{name}",), takes_value=False) for name in ("echo", "interleaved", "refuse", "agent")),
)
"""The simulated engine's pace, what it answers with, and its ways to fail."""

ARGUMENTS = Arguments(refused=ANY | _REFUSED, options=OPTIONS, abbreviates=True)
