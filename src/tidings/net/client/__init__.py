"""The client of a broker: `client` for asyncio, `blocking` for programs without an event loop.

Both are also exported as `tidings.Client` and `tidings.BlockingClient`.
"""

from tidings.net.client.blocking import BlockingClient
from tidings.net.client.client import Client, Received, Subscription

__all__ = ["BlockingClient", "Client", "Received", "Subscription"]
