"""Where deliveries go: files, webhooks, the live network."""
