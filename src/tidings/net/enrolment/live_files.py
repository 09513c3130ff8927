"""What a running broker or client does when its files are replaced, and how it has them replaced before they end.

A certificate, the authorities, peers and rights are files. Somebody replaces them: `tidings org renew`, `tidings org
trust`, an approval, or the participant itself when it renews (`renew_when_due`). Whoever runs notices within a second
and uses them for new connections; connections that are open stay, except to those who are trusted no longer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tidings.errors import TidingsError
from tidings.net.clock import now_ms
from tidings.net.config import BrokerConfig, files_in, read_peers
from tidings.net.transport import tls
from tidings.net.transport.handshake import Participant
from tidings.net.transport.peer_links import PeerLinks

ASK_EVERY_S = 60.0  # At most: how often a participant looks whether it is time to renew, and tries again.

log = logging.getLogger("tidings.enrolment")


class ChangedFiles:
    """Notices when files, or the files in folders, are replaced."""

    def __init__(self, paths: Iterable[Path | None]) -> None:
        self._paths = [path for path in paths if path is not None]
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether anything is different from the last time this was asked."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[tuple[str, int, int]]:
        found = []
        for file in files_in((path for path in self._paths if path.exists()), ".token", ".type"):
            try:
                status = file.stat()
            except FileNotFoundError:  # Removed while we look.
                continue
            found.append((str(file), status.st_mtime_ns, status.st_ino))
        return found


class _Accepts(Protocol):
    def present(self, participant: Participant, context: ssl.SSLContext) -> None: ...


class LiveFiles:
    """The files of one running broker: certificate, authorities and peers take effect here, rights and types at the broker."""

    def __init__(self, config: BrokerConfig, links: PeerLinks, acceptor: _Accepts) -> None:
        self._config, self._links, self._acceptor = config, links, acceptor
        watched = (config.certificate, config.trusted, config.peers_file, *config.tokens, *config.types)
        self._files = ChangedFiles(watched)

    def changed(self) -> bool:
        return self._files.changed()

    def apply(self, participant: Participant) -> Participant:
        """Uses the files as they are now; this broker as it shows itself from now on."""
        config = self._config
        files = config.certificate, config.key, config.trusted
        server, client = tls.server_context(*files), tls.client_context(*files)  # Both, before either is used.
        anchors = tuple(tls.anchors_in(config.trusted))
        shown = replace(participant, certificate_der=tls.der(config.certificate.read_bytes()), anchors=anchors)
        self._acceptor.present(shown, server)
        self._links.present(shown, client, tls.authority_keys(config.trusted))
        peers = [peer.peer for peer in read_peers(config.peers_file, not_at=(config.listen, config.advertise))]
        self._links.configure(peers)
        for peer in peers:
            self._links.keep(peer.id)
        return shown


def seconds_left(certificate: Path) -> float:
    """How long a certificate still holds."""
    return (tls.certificate_end_ms(certificate.read_bytes()) - now_ms()) / 1000


async def renew_if_ended(certificate: Path, role: str) -> None:
    """Renews a participant that was off when it ought to have renewed; if that fails, it says so and leaves it there."""
    from tidings.net.enrolment.renewal import renew_participant  # Here, as below.

    try:
        if seconds_left(certificate) <= 0:
            await asyncio.to_thread(renew_participant, certificate.parent, role)
    except (TidingsError, OSError, ValueError) as wrong:
        log.warning("the certificate was not renewed", extra={"why": str(wrong)})


async def renew_when_due(certificate: Path, role: str) -> None:
    """Renews a running participant's certificate and rights at its organisation, again and again, until cancelled."""
    from tidings.net.enrolment.organisation import (
        is_due,
    )  # Here, so that a client loads the registry only if it renews.
    from tidings.net.enrolment.renewal import renew_participant

    while True:
        if is_due(await asyncio.to_thread(certificate.read_bytes)):
            try:
                await asyncio.to_thread(renew_participant, certificate.parent, role)
            except (TidingsError, OSError) as wrong:
                log.warning("the certificate was not renewed", extra={"why": str(wrong)})
        await asyncio.sleep(min(ASK_EVERY_S, max(1.0, seconds_left(certificate) / 10)))
