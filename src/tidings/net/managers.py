"""The key managers that run at a broker: what they must not forget is on disk before it is given out."""

from __future__ import annotations

from tidings.net.config import BrokerConfig
from tidings.security import Identity


class Managers:
    """The key managers of one broker."""

    def __init__(self, config: BrokerConfig, identity: Identity) -> None:
        self._config, self._identity = config, identity

    def keep(self, type_id: bytes, generation: int) -> None:
        """Write a manager's state down."""
        raise AssertionError("no manager runs here")
