"""The experiments of the paper on encryption-enforced access control.

experiments   what sealing costs: figures 6 and 7
keys          what group keys cost: entries per change, keys stored, refreshes saved
"""

from tidings.lab.secure.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
