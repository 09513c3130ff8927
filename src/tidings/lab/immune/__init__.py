"""The experiments of the immunity-based routing paper: its figures, and other graphs than its own."""

from tidings.lab.immune import experiments, graphs

EXPERIMENTS = (*experiments.EXPERIMENTS, graphs.EXPERIMENT)

__all__ = ["EXPERIMENTS"]
