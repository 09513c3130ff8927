"""The experiments of the immunity-based routing paper."""

from tidings.lab.immune.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
