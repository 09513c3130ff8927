"""All that a broker imports, and the kernels: for the process that brokers are forked from, which imports this first."""

# ruff: noqa: F401
import tests.live.nursery
import tidings.cli
import tidings.net.broker.broker
import tidings.net.broker.process
import tidings.net.gateway.server
from tidings.matching import load_kernels

load_kernels()
