"""sd_notify(3): readiness, watchdog and one status line. Nothing happens where systemd did not start us."""

from __future__ import annotations

import contextlib
import os
import socket

__all__ = ["Notifier"]


class Notifier:
    """``address`` is $NOTIFY_SOCKET; a leading @ is an abstract socket."""

    def __init__(self, address: str | None = None) -> None:
        name = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._address = "\0" + name[1:] if name.startswith("@") else name

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self, status: str) -> None:
        """To be sent at least every half of the unit's WatchdogSec."""
        self._send(f"WATCHDOG=1\nSTATUS={status.splitlines()[0] if status else ''}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # a lost datagram costs one heartbeat, an exception would cost the daemon
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as pipe:
            pipe.sendto(message.encode(), self._address)
