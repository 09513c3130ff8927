"""What takes part: something that is given conditions and events, and tells subscribers."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.workload import EventValues


class Unavailable(Exception):
    """This contender cannot take part here, and why."""


class Contender(ABC):
    """One system between a publisher and a subscriber, both in this process."""

    name: str
    brokers: int = 1
    sealed: bool = False
    tls = False
    on_disk = False
    """Whether an event is on disk (fsync) before it is acknowledged, and the subscriber acknowledges what it has processed."""
    filters = "in the server"
    rights = "none"
    """What each event is checked for."""

    @abstractmethod
    async def start(self) -> None:
        """Have its servers running, and the mark wanted; raises Unavailable where it is not installed."""

    @abstractmethod
    async def want(self, first: int, end: int) -> None:
        """Subscribe to conditions `first` to `end - 1`; returns when they are in place."""

    @abstractmethod
    async def say(self, events: Sequence[EventValues]) -> None:
        """Publish as fast as it can be done."""

    @abstractmethod
    async def heard(self, numbers: Sequence[int]) -> bool:
        """Waits for as many notices as there are numbers; whether they were for exactly these conditions."""

    @abstractmethod
    def say_mark(self) -> None:
        """Publish one mark, without waiting."""

    @abstractmethod
    async def hear_mark(self) -> None:
        """Waits for the next mark to be told."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends the servers."""

    @abstractmethod
    def servers(self) -> Sequence[int]:
        """The processes of its servers."""

    def promises(self) -> str:
        """What it promises, in a few words."""
        said = [name for name, is_promised in (("TLS", self.tls), ("disk", self.on_disk)) if is_promised]
        return ", ".join([*said, *([f"rights {self.rights}"] if self.rights != "none" else [])]) or "none of these"

    def cpu_s(self) -> float:
        """What its servers have used of the processor."""
        return sum(cpu_s_of(pid) for pid in self.servers())


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def cpu_s_of(pid: int, *, with_ended: bool = False) -> float:
    """What a process has used of the processor; also, if asked for, what those that it had started have, and that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")
