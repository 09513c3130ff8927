"""A real network in one process, for tests that kill nobody: the same brokers, sockets, certificates and disks."""

from __future__ import annotations

from pathlib import Path

from tidings.net import Broker, Client, DevNetwork, DevNetworkFiles, lay_out, read_broker


class Together:
    """The brokers of a layout, all on the event loop of the test."""

    def __init__(self, folder: Path, layout: DevNetwork | None = None) -> None:
        self.laid: DevNetworkFiles = lay_out(
            folder / "network", layout or DevNetwork(first_port=0, brokers={"police": 1})
        )
        self.brokers: dict[str, Broker] = {}
        self._clients: list[Client] = []

    async def __aenter__(self) -> Together:
        for name in self.laid.brokers:
            await self.start(name)
        for broker in self.brokers.values():
            await broker.is_joined.wait()
        return self

    async def start(self, name: str) -> Broker:
        broker = self.brokers[name] = await Broker.start(read_broker(self.laid.brokers[name]))
        return broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def client(self, name: str) -> Client:
        client = await Client.connect(self.laid.clients[name])
        self._clients.append(client)
        return client

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        for broker in self.brokers.values():
            await broker.stop()
