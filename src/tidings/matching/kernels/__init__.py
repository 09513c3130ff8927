"""The Numba kernels of the index, and the cache they are compiled into."""
