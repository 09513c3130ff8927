"""Hermes, measured: hops per publication where each attribute, or each whole event, has its own key.

The paper on encryption across domains asks what it costs to do without encrypted
attributes (its figure 8). With them, one event of one type serves all N groups of
subscribers. Without, every group needs an event of its own, encrypted for it, in a tree
of its own. 2000 brokers, one publisher, N subscribers on brokers of their own.

What the paper describes and what it shows disagree, so both are measured: in model A each
group's event goes to that group's one subscriber; in model B, which fits the paper's
numbers, each of the N events goes to all N subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from tidings.errors import InputError
from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis, numbers
from tidings.lab.fork import in_a_copy
from tidings.lab.parameter_checks import expect_at_least
from tidings.lab.results import Finding, Results, Verdict, judged
from tidings.lab.scale import scale_experiment
from tidings.overlay import Everything
from tidings.sim import Flat, Topology, World

ATTRIBUTE, MODEL_A, MODEL_B = "attribute encryption", "event encryption, model A", "event encryption, model B"
SHORTCUT, REMEMBERED = "attribute, shortcut", "attribute, shortcut and known rendezvous"

# No periodic messages: nothing happens in these worlds but what is measured. Leaf sets as in the paper's time.
_STILL = {"heartbeat_s": 0, "refresh_s": 0, "repair": False, "leaf_count": 16}
_OPTIONS: dict[str, dict[str, Any]] = {
    ATTRIBUTE: {"shortcut": False},
    MODEL_A: {"shortcut": False},
    MODEL_B: {"shortcut": False},
    SHORTCUT: {"shortcut": True},
    REMEMBERED: {"shortcut": True, "remember_root": True},
}


# Models whose brokers do the same: one network serves each in turn, as building it takes longest.
_TOGETHER = (f"{ATTRIBUTE}; {MODEL_A}; {MODEL_B}", SHORTCUT, REMEMBERED)


def _models(parameters: Parameters) -> list[str]:
    return str(parameters["models"]).split("; ")


def measure_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Hops that one publication takes until all groups have it, for each model in a network that knows no other."""
    models = _models(parameters)
    options = {**_STILL, **_OPTIONS[models[0]], "base": parameters["base"]}
    alone = Topology(parameters["node_count"], (), Flat())
    world = World("hermes", topology=alone, seed=seed, options=options, recording=False)
    return [Measured(*row) for model in models for row in in_a_copy(partial(_hops_of, world, model, parameters, seed))]


def _hops_of(world: World, model: str, parameters: Parameters, seed: int) -> list[tuple[str, float, int]]:
    """For some choices of groups, one after the other."""
    return [
        (model, groups, _hops(world, model, int(groups), f"{seed}/{groups}/{trial}"))
        for groups in numbers(parameters, "groups")
        for trial in range(parameters["trials"])
    ]


def _hops(world: World, model: str, groups: int, name: str) -> int:
    publisher, *subscribers = Random(name).sample(range(len(world.nodes)), groups + 1)
    trees = _trees(model, subscribers, name)
    for event_type, wanting in trees:
        for node in wanting:
            world.subscribe(node, Everything(), event_type)
    world.run_until_quiet()
    types = [event_type for event_type, _ in trees]
    if model == REMEMBERED:
        _publish(world, publisher, types)  # The first one tells the publisher where the rendezvous is.
    return _publish(world, publisher, types)


def _trees(model: str, subscribers: list[int], name: str) -> list[tuple[str, list[int]]]:
    """The types there are, each with its subscribers. Names are new each time: each has another rendezvous."""
    if model == MODEL_A:
        return [(f"{name}/{group}", [node]) for group, node in enumerate(subscribers)]
    if model == MODEL_B:
        return [(f"{name}/{group}", subscribers) for group, _ in enumerate(subscribers)]
    return [(name, subscribers)]


def _publish(world: World, publisher: int, types: Iterable[str]) -> int:
    before = world.trace.messages("Up", "Down")
    for event_type in types:
        world.publish(publisher, {"x": 0}, event_type)
    world.run_until_quiet()
    return world.trace.messages("Up", "Down") - before


def check(parameters: Parameters) -> None:
    nodes = parameters["node_count"]
    unknown = [model for model in _models(parameters) if model not in _OPTIONS]
    if unknown:
        raise InputError(f"expected models to be some of {'; '.join(_OPTIONS)}, got {unknown[0]!r}")
    if len({str(_OPTIONS[model]) for model in _models(parameters)}) > 1:
        raise InputError(f"expected models of one network to have the same brokers, got {parameters['models']!r}")
    expect_at_least(2, parameters, "node_count")
    if not all(1 <= groups < nodes for groups in numbers(parameters, "groups")):
        raise InputError(f"expected groups from 1 to below node_count={nodes}, got {parameters['groups']}")
    if parameters["base"] not in (2, 4, 8, 16):
        raise InputError(f"expected base to be 2, 4, 8 or 16, got {parameters['base']}")
    expect_at_least(1, parameters, "trials")


def cost(parameters: Parameters) -> float:
    """In model B each of N subscribers joins N trees."""
    return float(parameters["node_count"] * (0.0007 if MODEL_B in _models(parameters) else 0.00025))


# ── What the paper says, and what is said beyond it ────────────────────────────

_PUBLISHED = {ATTRIBUTE: {2.0: 7.2, 10.0: 24.2}, MODEL_B: {2.0: 16.6, 10.0: 251.0}}
_OVER = {2.0: 0.2, 10.0: 0.15}  # How far off a number may be, as a share of the paper's: small trees vary more.


def _takes_about(series: str, groups: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        hops = results.spread(series, groups)
        published = _PUBLISHED[MODEL_B if series == MODEL_A else series][groups]
        verdict = judged(abs(hops.mean - published) / published, holds=lambda off: off <= _OVER[groups])
        why = f"within {_OVER[groups]:.0%} of the paper, which names neither base nor leaf set"
        return Finding(
            f"{hops.mean:.1f} ± {hops.margin:.1f}", verdict, why if verdict is Verdict.HOLDS else f"not {why}"
        )

    return judge


def _ratio(model: str) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        ratio = results.mean(model, 10) / results.mean(ATTRIBUTE, 10)
        why = "as the paper's numbers if each event goes to all groups (B), not as its text if to one (A)"
        return Finding(f"{ratio:.1f}", judged(ratio, holds=lambda r: 9 <= r <= 12), why)

    return judge


def _attribute_is_least(results: Results) -> Finding:
    places = [groups for groups in results.xs(ATTRIBUTE) if groups >= 2]
    means = [tuple(results.mean(model, groups) for model in (ATTRIBUTE, MODEL_A, MODEL_B)) for groups in places]
    shown = ", ".join(
        f"{groups:g}: {a:.1f} < {b:.1f} < {c:.1f}" for groups, (a, b, c) in zip(places, means, strict=True)
    )
    return Finding(shown, judged(all(a < b < c for a, b, c in means), holds=bool), "one tree is shared by all groups")


def _shortcuts_save(results: Results) -> Finding:
    means = {groups: results.mean(REMEMBERED, groups) for groups in (2.0, 10.0)}
    plain = {groups: results.mean(SHORTCUT, groups) for groups in (2.0, 10.0)}
    less = all(mean <= _PUBLISHED[ATTRIBUTE][groups] for groups, mean in means.items())
    shown = ", ".join(
        f"{mean:.2f} for {groups:g} groups ({plain[groups]:.2f} by shortcut alone)" for groups, mean in means.items()
    )
    why = "branches met on the way up are served at once, and a publisher that knows the rendezvous goes straight there"
    return Finding(shown, judged(less, holds=lambda _: False, better=bool), why)


# ── The experiment ─────────────────────────────────────────────────────────────

EXPERIMENTS = (
    Experiment(
        paper="hermes",
        conditions=(
            "the paper's 2000 brokers; it names neither base nor leaf set, here 16 and 16; its text describes model A "
            "(each event to one group), its numbers fit model B (each event to all groups)"
        ),
        figure="8",
        title="Encryption across domains, figure 8: hops per publication (2000 brokers)",
        measure=measure_hops,
        x=PlotAxis("groups of subscribers", log=True),
        y=PlotAxis("hops per publication", log=True),
        varies={"models": _TOGETHER, "groups": ("1 2 5 10 20 50",)},
        stays={"node_count": 2000, "base": 16, "trials": 1},
        seeds=100,
        quick_varies={"groups": ("1 2 10",)},
        quick_seeds=8,
        check=check,
        cost=cost,
        published=tuple(Measured(series, x, y) for series, at in _PUBLISHED.items() for x, y in at.items()),
        claims=(
            Claim("attribute encryption, 2 groups", "7.2 hops", _takes_about(ATTRIBUTE, 2.0)),
            Claim("attribute encryption, 10 groups", "24.2 hops", _takes_about(ATTRIBUTE, 10.0)),
            Claim("event encryption, 2 groups (model B)", "16.6 hops", _takes_about(MODEL_B, 2.0)),
            Claim("event encryption, 10 groups (model B)", "251.0 hops", _takes_about(MODEL_B, 10.0)),
            Claim("event encryption, 2 groups (model A)", "16.6 hops", _takes_about(MODEL_A, 2.0)),
            Claim("event encryption, 10 groups (model A)", "251.0 hops", _takes_about(MODEL_A, 10.0)),
            Claim(
                "event encryption: ten times the hops for 10 groups (model B)", "10.4, here 9 to 12", _ratio(MODEL_B)
            ),
            Claim(
                "event encryption: ten times the hops for 10 groups (model A)", "10.4, here 9 to 12", _ratio(MODEL_A)
            ),
            Claim("attribute encryption takes fewest hops", "attribute < A < B from 2 groups on", _attribute_is_least),
            Claim("beyond the paper: fewer hops by shortcuts", "≤ 7.2 and ≤ 24.2", _shortcuts_save),
        ),
    ),
    scale_experiment("hermes", (1_000, 10_000, 100_000), seconds=lambda nodes: 1.5 + 1e-3 * nodes),
)
