"""The live network against RabbitMQ's headers exchange and NATS; run it with `python -m benchmarks.live`."""
