"""The HTTP gateway of a broker: publish, subscribe and look things up from a browser."""
