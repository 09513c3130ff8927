"""The experiments of the IRBR paper."""

from tidings.lab.irbr.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
