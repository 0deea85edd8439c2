"""What a service tells systemd (``Type=notify``), without its library: datagrams to ``$NOTIFY_SOCKET``."""

from __future__ import annotations

import asyncio
import os
import socket


class Notifier:
    """Tells the supervisor about this process, in the fields of sd_notify(3); does nothing where there is none."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address if address is not None else os.environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # an abstract socket
            self._address = "\0" + self._address[1:]

    def tell(self, **fields: str) -> None:
        """Send ``FIELD=value`` lines. A supervisor that does not listen is ignored."""
        if not self._address:
            return
        message = "\n".join(f"{name}={value}" for name, value in fields.items()).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.connect(self._address)
                sender.send(message)
            except OSError:
                return

    def ready(self, status: str) -> None:
        """The start is over; what is ordered after this unit begins now."""
        self.tell(READY="1", STATUS=status)

    def waiting(self, status: str, seconds: float) -> None:
        """Still starting: give us ``seconds`` more."""
        self.tell(STATUS=status, EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)))

    def stopping(self, seconds: float) -> None:
        """The stop has begun and takes ``seconds`` at most."""
        self.tell(STOPPING="1", STATUS="stopping", EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)))

    def renewing(self) -> None:
        """It begins anew in its own place and is ready again soon: for systemd a reload, not a stop."""
        self.tell(RELOADING="1", STATUS="starting anew")

    async def feed_watchdog(self) -> None:
        """While the event loop runs, say so twice per ``WatchdogSec``. Returns at once when there is no watchdog."""
        period_us = int(os.environ.get("WATCHDOG_USEC", "0"))
        watched = os.environ.get("WATCHDOG_PID", str(os.getpid()))
        if not self._address or period_us <= 0 or watched != str(os.getpid()):
            return
        while True:
            self.tell(WATCHDOG="1")
            await asyncio.sleep(period_us / 2e6)
