"""Where events and subscriptions come from: files, streams, a registry, the live network."""
