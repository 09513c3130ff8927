"""Sealed events and filters: frames, sealing and opening, one by one and in bulk."""
