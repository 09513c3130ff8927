"""What an operator sees of a broker: `metrics` for Prometheus and `logs` as JSON lines."""
