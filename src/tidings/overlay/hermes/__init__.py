"""Hermes: one rendezvous-rooted multicast tree for each event type, on a Pastry ring."""
