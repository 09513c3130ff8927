"""Sealed events on Spark: decrypting what comes in, encrypting for each recipient."""
