"""A program that publishes and subscribes: the asyncio client and its blocking twin."""

from tidings.net.client.blocking import BlockingClient
from tidings.net.client.client import Client, Received, Subscription

__all__ = ["BlockingClient", "Client", "Received", "Subscription"]
