"""The live network: brokers and clients as real processes, over mutual TLS 1.3, with a journal on disk.

A `Broker` runs the same `Node` as the simulator, driven by asyncio; `serve` runs it as a process. A
`Client` publishes to it and subscribes at it; `BlockingClient` is the same for programs without an event
loop. `read_broker` and `read_client` read their configuration files, `broker_with` adds options of the command line;
`lay_out` creates the files of a whole network for development.

In reading order: `transport` (frames, TLS, handshake, links), `client`, `broker`, `gateway` (HTTP), `observability`; beside
them `config`, `ids`, `clock`, `dev_network`, `federation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.net.client.blocking import BlockingClient
from tidings.net.client.client import Client, Received, Subscription
from tidings.net.config import (
    BrokerConfig,
    ClientConfig,
    Limits,
    PeerConfig,
    broker_with,
    peer_at,
    read_broker,
    read_client,
)
from tidings.net.dev_network import DevNetwork, DevNetworkFiles, ReadAccess, lay_out
from tidings.net.federation import introduce, trust_authority
from tidings.net.ids import read_event_id, show_event
from tidings.net.observability.logs import log_to_stderr
from tidings.net.transport.tls import domains_in

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker
    from tidings.net.broker.process import serve

Layout, LaidOut, Reader = DevNetwork, DevNetworkFiles, ReadAccess  # Their names in 0.1.

__all__ = [
    "BlockingClient",
    "Broker",
    "BrokerConfig",
    "Client",
    "ClientConfig",
    "DevNetwork",
    "DevNetworkFiles",
    "LaidOut",
    "Layout",
    "Limits",
    "PeerConfig",
    "ReadAccess",
    "Reader",
    "Received",
    "Subscription",
    "broker_with",
    "domains_in",
    "introduce",
    "lay_out",
    "log_to_stderr",
    "peer_at",
    "read_broker",
    "read_client",
    "read_event_id",
    "serve",
    "show_event",
    "trust_authority",
]


def __getattr__(name: str) -> Any:
    # A broker loads a node and the matching kernels, which takes a second; a client does not need them.
    if name == "Broker":
        from tidings.net.broker.broker import Broker

        return Broker
    if name == "serve":
        from tidings.net.broker.process import serve

        return serve
    raise AttributeError(f"module 'tidings.net' has no attribute {name!r}")
