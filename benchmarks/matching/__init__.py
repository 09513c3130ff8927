"""Who matches fastest: `tidings.Index` and its peers on the same subscriptions and events, answers compared.

`python -m benchmarks.matching` runs it; `contenders` says who takes part, at which size and for how long.
Each contender has a file of its own and runs in a process of its own, pinned to one core.
"""
