"""Who may do what: capabilities as Biscuit tokens, reduced to rights."""
