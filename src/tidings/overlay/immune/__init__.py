"""Immunity-based routing: a core of brokers in a scale-free network that all others are attached to."""
