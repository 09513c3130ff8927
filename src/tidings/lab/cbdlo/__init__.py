"""The experiments of the CBDLO paper."""

from tidings.lab.cbdlo.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
