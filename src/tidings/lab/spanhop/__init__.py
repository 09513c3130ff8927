"""The experiments of the Spanhop paper."""

from tidings.lab.spanhop.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
