"""What an operator sees of a broker: metrics and logs."""
