"""Connections between processes: frames, handshakes and mutual TLS."""
