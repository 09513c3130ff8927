"""What an operator sees of a broker.

In reading order: `latency` (what a broker measures while it works), `metrics` for Prometheus, `spans` for
OpenTelemetry, `logs` as JSON lines.
"""
