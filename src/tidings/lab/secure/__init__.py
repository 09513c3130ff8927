"""The experiments of the access control paper."""

from tidings.lab.secure.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
