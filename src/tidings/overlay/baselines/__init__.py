"""The protocols that the others are measured against: flooding, gossip, TERA and Simple."""
