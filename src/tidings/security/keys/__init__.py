"""Keys of types and attributes: key groups, key trees, the key manager and the keyring."""
