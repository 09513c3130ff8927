"""IRBR: identifier-range-based routing of subscriptions and events on a Pastry ring."""
