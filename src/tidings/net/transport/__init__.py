"""Connections between processes: in reading order `frames`, `tls`, `handshake`, `connection`, `peer_links`, `capture`."""
