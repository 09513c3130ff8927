"""What can happen to brokers that run: killed, frozen, cut off, in the wrong time, on a full disk.

`Troubled` is a live network to which it can happen. Each fault is struck, lasts a while and is mended; two at
once never hit the same broker. All are drawn from one `Random`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from tests.live.disks import SmallDisk
from tests.live.processes import BrokerProcess, LiveNetwork
from tests.live.wires import Wires
from tidings.net import DevNetwork, read_broker

JUMP_S_MAX = 2400.0  # Forth and back: rights and certificates begin an hour before they are given.
LASTS_S = (0.3, 4.0)
APART_S = (2.0, 14.0)  # Longer than a broker bears silence, sometimes.
FULL_S = (0.5, 12.0)  # A journal goes on for a while in the room that it has taken before.


class Troubled(LiveNetwork):
    """A network with a wire between any two brokers, clocks that can be set and some small disks."""

    def __init__(self, folder: Path, layout: DevNetwork, *, small: Sequence[str], disk_mb: int) -> None:
        super().__init__(folder, layout, captured=True)
        self.wires = Wires(self.pids)
        self.disks = {name: self._disk(self.brokers[name], disk_mb) for name in small}
        self.keeps_disks = False
        """Whether what is on the small disks is to outlive the network."""

    def _disk(self, broker: BrokerProcess, size_mb: int) -> SmallDisk:
        return SmallDisk(read_broker(broker.config).data, size_mb, lambda: broker.pid)

    async def __aenter__(self) -> Troubled:
        listens = {name: read_broker(broker.config).listen for name, broker in self.brokers.items()}
        proxies = {address: await self.wires.lead_to(name, address) for name, address in listens.items()}
        for name, broker in self.brokers.items():
            broker.config.write_text(through(broker.config.read_text(), listens[name], proxies))
        await super().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.wires.heal()
        await super().__aexit__()
        await self.wires.close()
        for disk in self.disks.values():
            disk.close(keep=self.keeps_disks)


def through(config: str, own: str, proxies: dict[str, str]) -> str:
    """A broker's file in which others are reached through their proxies, and it says that it is, too."""
    for address, proxy in proxies.items():
        config = config.replace(f'address = "{address}"', f'address = "{proxy}"')
    return config.replace(f'listen = "{own}"\n', f'listen = "{own}"\nadvertise = "{proxies[own]}"\n')


class Faults:
    """Strikes a troubled network, one fault after the other."""

    def __init__(self, network: Troubled, rng: Random) -> None:
        self.network, self.rng = network, rng
        self.struck: Counter[str] = Counter()
        self._busy: set[str] = set()
        self._is_split = False
        self._kinds: dict[str, Callable[[], Awaitable[bool]]] = {  # Whether there was anybody it could happen to.
            "kill": self._kill,
            "freeze": self._freeze,
            "split": self._split,
            "clock": self._clock,
            "full disk": self._full_disk,
        }

    @property
    def is_complete(self) -> bool:
        """Whether there was one of each kind."""
        return all(self.struck[kind] for kind in self._kinds)

    def check_up(self) -> None:
        """Raises AssertionError if a broker is down that nobody has killed."""
        for name, broker in self.network.brokers.items():
            assert broker.is_up or name in self._busy, f"{name} ended by itself; its last words: {broker.tail()}"

    async def strike(self) -> None:
        """One fault, from its beginning to its end; of a kind that has not been, as long as there is one."""
        missing = [kind for kind in self._kinds if not self.struck[kind]]
        kind = self.rng.choice(missing or ["kill", "kill", "freeze", "split", "clock", "full disk"])
        self.struck[kind] += await self._kinds[kind]()

    async def mend(self) -> None:
        """Everybody up, in touch, in time and with room."""
        self.network.wires.heal()
        for disk in self.network.disks.values():
            disk.empty()
        for broker in self.network.brokers.values():
            broker.thaw()
            if not broker.is_up:
                await broker.start()
            await broker.until("listening")
            broker.set_clock(0.0)

    @contextlib.contextmanager
    def _one_of(self, names: Sequence[str]) -> Iterator[str]:
        """A broker that nothing else happens to meanwhile; empty if there is none."""
        free = [name for name in names if name not in self._busy]
        name = self.rng.choice(free) if free else ""
        self.check_up()  # Before its process is looked for in vain.
        self._busy.add(name)
        try:
            yield name
        finally:
            self._busy.discard(name)

    async def _lasts(self, between_s: tuple[float, float] = LASTS_S) -> None:
        await asyncio.sleep(self.rng.uniform(*between_s))

    async def _kill(self) -> bool:
        with self._one_of(list(self.network.brokers)) as name:
            if name:
                broker = self.network.brokers[name]
                await broker.kill()
                await self._lasts()
                await broker.start()
                await broker.until("listening")  # On a busy machine, who is killed at each start never comes up.
            return bool(name)

    async def _freeze(self) -> bool:
        with self._one_of(list(self.network.brokers)) as name:
            if name:
                self.network.brokers[name].freeze()
                await self._lasts()
                self.network.brokers[name].thaw()
            return bool(name)

    async def _split(self) -> bool:
        if self._is_split:
            return False
        self._is_split = True
        names = list(self.network.brokers)
        apart = self.rng.sample(names, self.rng.randint(1, len(names) // 2))
        self.network.wires.split(apart, silently=self.rng.random() < 0.5)
        await self._lasts(APART_S)
        self.network.wires.heal()
        self._is_split = False
        return True

    async def _clock(self) -> bool:
        with self._one_of(list(self.network.brokers)) as name:
            if name:
                broker = self.network.brokers[name]
                # A key manager that has once seen the future stands still until it comes: its clock only goes back.
                ahead_s = 0.0 if read_broker(broker.config).manages else JUMP_S_MAX
                broker.set_clock(self.rng.uniform(-JUMP_S_MAX, ahead_s))
                await self._lasts()
                broker.set_clock(0.0)
            return bool(name)

    async def _full_disk(self) -> bool:
        with self._one_of(list(self.network.disks)) as name:
            if name:
                self.network.disks[name].fill()
                await self._lasts(FULL_S)
                self.network.disks[name].empty()
            return bool(name)
