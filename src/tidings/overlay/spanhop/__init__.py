"""Spanhop with MGNP: brokers own the zones of a K-D partitioned information space."""
