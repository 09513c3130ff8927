"""Commands on the registry: identities, domains, types, grants and subscriptions."""
