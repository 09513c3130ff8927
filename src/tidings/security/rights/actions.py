"""What a right can allow."""

from __future__ import annotations

from typing import Final

ACTIONS = ("join-net", "publish", "subscribe", "history")
ANY_TYPE: Final = "*"  # Only for membership of the network.
