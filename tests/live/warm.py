"""All that a broker imports, and the kernels: for the process that brokers are forked from, which imports this first."""

# ruff: noqa: F401
import tests.live.nursery
import tidings.cli
import tidings.net.broker
import tidings.net.gateway
import tidings.net.process
from tidings.matching import load_kernels

load_kernels()
