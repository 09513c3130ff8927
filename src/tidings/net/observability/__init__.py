"""What an operator sees of a broker: `metrics` for Prometheus, `spans` for OpenTelemetry, `logs` as JSON lines."""
