"""Pastry: a ring of identifiers with leaf sets and prefix routing tables, which IRBR and Hermes run on."""
