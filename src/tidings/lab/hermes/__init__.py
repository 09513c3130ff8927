"""The experiments on Hermes as a baseline."""

from tidings.lab.hermes.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
