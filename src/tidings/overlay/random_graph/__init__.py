"""An unstructured overlay: a random graph kept by Cyclon, with access points and random walks."""
