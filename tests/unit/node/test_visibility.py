"""Several rights of one reader: they add up event by event, on both sides, and go one by one.

Held against a plain twin that works out what a reader may see from the list of its rights and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.city import NAMES, Sighting
from tests.unit.node.pair import FEDERATION, PLATES, a_node
from tidings.errors import Denied
from tidings.events import Value
from tidings.filters import parse
from tidings.node import Credentials, Delivery, Ended, Node, NodeEffect, RevocationState
from tidings.node.client_authorization import ReadRights, Visibility
from tidings.overlay import View
from tidings.pipeline.security.recipients import Rest, recipients_of
from tidings.security import BiscuitCapability, Grant, Identity, Mode, OnlineTest, grant
from tidings.sim import START_MS

OPEN = FEDERATION.type(Sighting, Mode.PLAIN)  # What is not sealed has rights as well, and no keys to wait for.
SEEN: dict[str, Value] = {"plate": "A", "place": "Soho", "speed": 31}
URL = "https://police.example"
READER = FEDERATION.identity("reader")
_CHANCE = Random("tokens")


@dataclass(frozen=True)
class Given:
    """A right as one would write it down. Times are seconds from the start."""

    names: tuple[str, ...] | None = None
    where: tuple[str, ...] = ()
    begins: int = 0
    ends: int = 1_000
    action: str = "subscribe"
    asked_every: int | None = None
    """Within how many seconds the owner must have said yes."""

    def token(self, holder: Identity) -> BiscuitCapability:
        granted = Grant(
            OPEN.type_id,
            frozenset({self.action}),
            holder.public_key,
            attributes=None if self.names is None else frozenset(map(OPEN.attr_id, self.names)),
            not_before=START_MS + self.begins * 1000,
            not_after=START_MS + self.ends * 1000,
            online=() if self.asked_every is None else (OnlineTest(URL, self.asked_every * 1000),),
            constraints=self.where,
        )
        return grant(FEDERATION.owner, granted, _CHANCE.randbytes)

    def holds(self, now: int, said_yes: Iterable[int]) -> bool:
        in_time = self.begins <= now < self.ends
        asked = self.asked_every is None or any(0 <= now - at <= self.asked_every for at in list(said_yes)[-1:])
        return in_time and asked and self.action == "subscribe"


# ── The twin ───────────────────────────────────────────────────────────────────


def attributes(right: Given) -> set[str]:
    return set(NAMES if right.names is None else right.names)


def asks(right: Given) -> set[str]:
    return {name for text in right.where for name in parse(text, Sighting).attributes}


def may_see(rights: Sequence[Given], view: View, readable: set[str]) -> set[str] | None:
    """What the rights of one reader show of an event; None if none of them is for it."""
    found: set[str] | None = None
    for right in rights:
        can_tell = asks(right) <= readable and not any(view.unknown(name) for name in asks(right))
        if can_tell and all(parse(text, Sighting).evaluate(view.values) is True for text in right.where):
            found = (found or set()) | attributes(right)
    return found


def both_may_see(theirs: Sequence[Given], mine: Sequence[Given], view: View) -> set[str] | None:
    readable = {name for right in mine for name in attributes(right)}
    one, other = may_see(theirs, view, readable), may_see(mine, view, readable)
    return None if one is None or other is None else one & other


def may_ask(theirs: Sequence[Given], mine: Sequence[Given], names: Iterable[str]) -> bool:
    readable = {name for right in mine for name in attributes(right)}
    sides = [[attributes(right) for right in side if asks(right) <= readable] for side in (theirs, mine)]
    return all(side and set(names) <= set[str]().union(*side) for side in sides)


# ── Against the twin ───────────────────────────────────────────────────────────

WHERE = ("plate = 'A'", "plate <> 'A'", "speed > 3", "place IS NULL", "plate = 'A' OR speed < 2")
CONDITIONS = ("TRUE", "speed > 3", "plate = 'A' AND speed > 1", "place IS NULL OR speed > 3", "plate >= 'A'")

rights = st.builds(
    Given,
    names=st.none() | st.sampled_from([("plate",), ("place",), ("speed",), ("plate", "speed"), ("place", "speed")]),
    where=st.just(()) | st.lists(st.sampled_from(WHERE), min_size=1, max_size=2, unique=True).map(tuple),
    begins=st.sampled_from([0, 0, 0, 10]),
    ends=st.sampled_from([20, 30, 1_000, 1_000]),
    action=st.sampled_from(["subscribe", "subscribe", "subscribe", "publish"]),
    asked_every=st.none() | st.none() | st.just(5),
)
several = st.lists(rights, min_size=1, max_size=4)
events = st.fixed_dictionaries(
    {}, optional={"plate": st.sampled_from(["A", "B"]), "place": st.just("Soho"), "speed": st.sampled_from([1, 2, 31])}
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.integers(0, 35)),
        st.tuples(st.just("yes"), st.integers(0, 35)),
        st.tuples(st.just("revoke"), st.integers(0, 7)),
        st.tuples(st.just("hold"), rights),
    ),
    max_size=6,
)


class Book:
    """The rights of a reader and of its broker, as a list and as the node keeps them."""

    def __init__(self, theirs: Sequence[Given], mine: Sequence[Given]) -> None:
        self.state, self.now, self.said_yes = RevocationState(), 0, list[int]()
        self.broker = FEDERATION.identity("broker")
        self.their_tokens, self.my_tokens = (Credentials(each.public_key, self.state) for each in (READER, self.broker))
        self.theirs, self.mine = list[tuple[Given, tuple[str, ...]]](), list[tuple[Given, tuple[str, ...]]]()
        for right in theirs:
            token = right.token(READER)
            self.their_tokens.add(token)
            self.theirs.append((right, token.revocation_ids))
        for right in mine:
            self.hold(right)
        self.visibility = Visibility(
            *(ReadRights(each, self.state, OPEN) for each in (self.their_tokens, self.my_tokens))
        )

    def hold(self, right: Given) -> None:
        token = right.token(self.broker)
        self.my_tokens.add(token)
        self.mine.append((right, token.revocation_ids))

    def step(self, what: str, how: object) -> None:
        if what == "time":
            self.now = int(how)  # type: ignore[call-overload]
        elif what == "yes":
            self.said_yes.append(max([int(how), *self.said_yes]))  # type: ignore[call-overload]
            self.state.confirmed_online(URL, START_MS + self.said_yes[-1] * 1000)
        elif what == "hold":
            assert isinstance(how, Given)
            self.hold(how)
        else:
            given = [*self.theirs, *self.mine]
            self.state.revoke(given[int(how) % len(given)][1])  # type: ignore[call-overload]

    def holding(self, side: Sequence[tuple[Given, tuple[str, ...]]]) -> list[Given]:
        kept = [right for right, links in side if not any(link in self.state.revoked for link in links)]
        return [right for right in kept if right.holds(self.now, self.said_yes)]


@settings(max_examples=120, deadline=None)
@given(several, several, steps, st.lists(events, min_size=1, max_size=3), st.sets(st.sampled_from(NAMES), max_size=1))
def test_a_reader_sees_what_its_rights_and_its_brokers_show_whatever_happens_to_them(
    theirs: list[Given],
    mine: list[Given],
    what_happens: list[tuple[str, object]],
    said: list[dict[str, Value]],
    hidden: set[str],
) -> None:
    """Rights begin, end, are tested and revoked, the clock goes either way, and the answer is never an old one."""
    book = Book(theirs, mine)
    for step in [("time", 0), *what_happens]:
        book.step(*step)
        visible = book.visibility.at(START_MS + book.now * 1000)
        their_rights, my_rights = book.holding(book.theirs), book.holding(book.mine)
        for values in said:
            unread = tuple(name for name in values if name in hidden)
            view = View({name: value for name, value in values.items() if name not in hidden}, unread)
            names = both_may_see(their_rights, my_rights, view)
            assert visible.names(view) == names
            assert visible.project(view)[1] == {
                name: view.values[name] for name in view.values if name in (names or ())
            }
        for names_asked in ((), ("plate",), ("place", "speed"), NAMES):
            answered = may_ask(their_rights, my_rights, names_asked)
            assert visible.permits(names_asked) == answered
            assert (book.visibility.refusal(names_asked, START_MS + book.now * 1000) == "") == answered


@settings(max_examples=60, deadline=None)
@given(several, several, st.sampled_from(CONDITIONS), st.lists(events, min_size=1, max_size=4), st.integers(0, 7))
def test_a_client_is_told_of_what_it_asks_for_where_it_may_see_all_that_it_asks(
    theirs: list[Given], mine: list[Given], condition: str, said: list[dict[str, Value]], revoked: int
) -> None:
    """SECURE-INV-6, with several rights; before and after one of them is taken back."""
    book = Book(theirs, mine)
    tokens = [right.token(READER) for right in theirs]
    node, own = a_broker(mine)
    node.attach("reader", READER.public_key, [token.to_bytes() for token in tokens], 0.0)
    asked = parse(condition, Sighting).attributes
    if not may_ask(book.holding(book.theirs), book.holding(book.mine), asked):
        with pytest.raises(Denied):
            node.subscribe("reader", "Sighting", condition, 0.0)
        return
    node.subscribe("reader", "Sighting", condition, 0.0)
    for _ in range(2):
        their_rights, my_rights = book.holding(book.theirs), book.holding(book.mine)
        for values in said:
            expected = both_may_see(their_rights, my_rights, View(values))
            is_told = expected is not None and expected.issuperset(asked) and parse(condition, Sighting).matches(values)
            shown = {name: value for name, value in values.items() if name in (expected or ())}
            assert told(node.publish("camera", "Sighting", values, 0.0)[1]) == ([shown] if is_told else [])
        given = [*tokens, *own]
        effects = node.revoke(given[revoked % len(given)].revocation_ids, 0.0)
        book.step("revoke", revoked)
        still = may_ask(book.holding(book.theirs), book.holding(book.mine), asked)
        assert [isinstance(effect, Ended) for effect in effects if isinstance(effect, Ended)] == [True] * (not still)
        if not still:
            return


@settings(max_examples=60, deadline=None)
@given(several, st.lists(events, min_size=1, max_size=4))
def test_a_live_reader_is_shown_what_its_mail_from_spark_would_hold(
    theirs: list[Given], said: list[dict[str, Value]]
) -> None:
    book = Book([right for right in theirs if right.holds(0, [])], [Given()])
    visible = book.visibility.at(START_MS)
    given = {"reader": [held.right for held in book.their_tokens.all()]}
    mail = recipients_of(PLATES, given, START_MS, Rest.SEALED)
    for values in said:
        holding = [one for one in mail if _meets(values, one.met) and not any(_meets(values, un) for un in one.unmet)]
        assert len(holding) <= 1
        assert visible.names(View(values)) == (frozenset(holding[0].readable) if holding else None)


def _meets(values: dict[str, Value], conditions: Iterable[str]) -> bool:
    return all(parse(text, Sighting).matches(values) for text in conditions)


def told(effects: Iterable[NodeEffect]) -> list[dict[str, Value]]:
    return [effect.values for effect in effects if isinstance(effect, Delivery)]


def ended(effects: Iterable[NodeEffect]) -> list[str]:
    return [effect.why for effect in effects if isinstance(effect, Ended)]


def a_broker(mine: Sequence[Given] = (Given(),)) -> tuple[Node, list[BiscuitCapability]]:
    """A broker with these rights to read, and a camera that may publish."""
    node = a_node("alone")
    node.declare(OPEN, 0.0)
    own = [right.token(node.identity) for right in mine]
    for token in (*own, Given(action="publish").token(node.identity)):
        node.hold(token.to_bytes(), 0.0)
    camera = FEDERATION.identity("camera")
    node.attach("camera", camera.public_key, [Given(action="publish").token(camera).to_bytes()], 0.0)
    return node, own


def a_reader(node: Node, *given: Given, now: float = 0.0) -> list[BiscuitCapability]:
    tokens = [right.token(READER) for right in given]
    node.attach("reader", READER.public_key, [token.to_bytes() for token in tokens], now)
    return tokens


def publish(node: Node, now: float = 0.0, **values: Value) -> list[dict[str, Value]]:
    return told(node.publish("camera", "Sighting", {**SEEN, **values}, now)[1])


# ── One by one ─────────────────────────────────────────────────────────────────


def test_a_condition_may_ask_for_what_several_rights_are_for_together() -> None:
    node, _ = a_broker([Given(("plate",)), Given(("speed",))])
    a_reader(node, Given(("plate", "place")), Given(("speed",)))
    node.subscribe("reader", "Sighting", "plate = 'A' AND speed > 3", 0.0)
    assert publish(node) == [{"plate": "A", "speed": 31}]
    assert publish(node, speed=2) == []
    with pytest.raises(Denied, match=r"attributes: no right to place \(this broker's own right\)"):
        node.subscribe("reader", "Sighting", "place = 'Soho'", 0.0)


def test_rights_with_different_conditions_answer_only_where_each_attribute_may_be_visible() -> None:
    """Whether an event comes tells of every attribute that the condition names."""
    node, _ = a_broker()
    a_reader(node, Given(("plate",)), Given(("speed",), ("plate = 'A'",)), Given(("place",), ("plate = 'B'",)))
    _, fast, never, anything = (
        node.subscribe("reader", "Sighting", condition, 0.0)
        for condition in ("plate IS NOT NULL", "speed > 3 OR plate = 'B'", "speed > 3 OR place = 'Soho'", "TRUE")
    )
    said = {plate: node.publish("camera", "Sighting", {**SEEN, "plate": plate}, 0.0) for plate in "ABC"}
    shown = {plate: told(effects) for plate, (_, effects) in said.items()}
    assert shown["A"] == [{"plate": "A", "speed": 31}] * 3
    assert shown["B"] == [{"plate": "B", "place": "Soho"}] * 2
    assert shown["C"] == [{"plate": "C"}] * 2
    outside = "constraints: the event is outside what the rights are for"
    assert node.why(said["B"][0], fast[0]) == node.why(said["A"][0], never[0]) == outside
    assert node.why(said["C"][0], anything[0]) == "delivered: TRUE"
    slow, _ = node.publish("camera", "Sighting", {**SEEN, "plate": "C", "speed": 1}, 0.0)
    assert node.why(said["C"][0], fast[0]) == node.why(slow, fast[0]) == outside  # The answer tells no speed either.


def test_an_event_for_which_no_right_counts_is_not_even_mentioned() -> None:
    node, _ = a_broker()
    a_reader(node, Given(("speed",), ("plate = 'A'",)), Given(("speed",), ("plate = 'B'",)))
    node.subscribe("reader", "Sighting", "TRUE", 0.0)
    assert [publish(node, plate=plate) for plate in "ABC"] == [[{"speed": 31}], [{"speed": 31}], []]


def test_a_brokers_own_conditions_are_its_clients_too() -> None:
    node, _ = a_broker([Given(("plate",)), Given(("speed",), ("plate = 'A'",))])
    a_reader(node, Given())
    node.subscribe("reader", "Sighting", "TRUE", 0.0)
    assert publish(node) == [{"plate": "A", "speed": 31}]
    assert publish(node, plate="B") == [{"plate": "B"}]


def test_with_one_of_two_rights_revoked_a_subscription_goes_on_with_less_and_with_both_it_ends() -> None:
    node, _ = a_broker()
    first, second = a_reader(node, Given(("plate",)), Given(("plate", "speed")))
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    assert publish(node) == [{"plate": "A", "speed": 31}]
    assert ended(node.revoke(second.revocation_ids, 0.0)) == []
    assert publish(node) == [{"plate": "A"}]
    (why,) = ended(node.revoke(first.revocation_ids, 0.0))
    assert why.startswith("revoked: link 0")
    assert node.subscriptions() == []


def test_the_reason_is_that_of_the_right_that_is_missed() -> None:
    node, _ = a_broker()
    first, _ = a_reader(node, Given(("speed",)), Given(("plate",)))
    node.subscribe("reader", "Sighting", "speed > 3 AND plate = 'A'", 0.0)
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    (why,) = ended(node.revoke(first.revocation_ids, 0.0))
    assert why.startswith("revoked: link 0")
    assert publish(node) == [{"plate": "A"}]


def test_rights_end_and_begin_by_the_clock_at_that_very_moment() -> None:
    node, _ = a_broker()
    a_reader(node, Given(("plate",), ends=20), Given(("speed",), ends=10), Given(("place",), begins=5))
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    shown = [[set(values) for values in publish(node, now)] for now in (4.999, 5.0, 9.999, 10.0, 19.999)]
    assert shown == [
        [{"plate", "speed"}],
        [{"plate", "speed", "place"}],
        [{"plate", "speed", "place"}],
        [{"plate", "place"}],
        [{"plate", "place"}],
    ]
    (why,) = ended(node.publish("camera", "Sighting", SEEN, 20.0)[1])
    assert why.startswith("validity:")
    assert node.subscriptions() == []


def test_what_an_online_test_shows_goes_with_its_answer_and_comes_back_with_the_next() -> None:
    node, _ = a_broker()
    a_reader(node, Given(("plate",)), Given(("speed",), asked_every=5))
    node.confirmed_online(URL, START_MS)
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    node.subscribe("reader", "Sighting", "speed > 3", 0.0)
    assert publish(node, 5.0) == [{"plate": "A", "speed": 31}] * 2
    effects = node.publish("camera", "Sighting", SEEN, 5.001)[1]
    assert told(effects) == [{"plate": "A"}]
    assert ended(effects)[0].startswith("online:")
    node.confirmed_online(URL, START_MS + 6_000)
    assert publish(node, 6.0) == [{"plate": "A", "speed": 31}]


def test_a_right_that_was_shown_later_counts_for_later_subscriptions() -> None:
    node, _ = a_broker()
    a_reader(node, Given(("plate",)))
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    a_reader(node, Given(("plate",)), Given(("speed",)))
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    assert publish(node) == [{"plate": "A"}, {"plate": "A", "speed": 31}]


def test_a_right_of_the_brokers_counts_from_when_it_is_held_until_it_is_given_up() -> None:
    node, _ = a_broker([Given(("plate",))])
    a_reader(node, Given())
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    assert publish(node) == [{"plate": "A"}]
    later = Given(("speed",)).token(node.identity)
    node.hold(later.to_bytes(), 0.0)
    assert publish(node) == [{"plate": "A", "speed": 31}]
    node.subscribe("reader", "Sighting", "speed > 3", 0.0)
    (why,) = ended(node.withdraw(later.revocation_ids, 0.0))
    assert why == "attributes: no right to speed (this broker's own right)"
    assert publish(node) == [{"plate": "A"}]


def test_a_right_whose_conditions_cannot_be_checked_counts_for_nothing_and_spoils_no_other() -> None:
    node, _ = a_broker([Given(("speed", "plate"))])
    a_reader(node, Given(("plate",)), Given(("speed",), ("place = 'Soho'",)), Given(("speed",), ("no_such > 3",)))
    node.subscribe("reader", "Sighting", "plate = 'A'", 0.0)
    assert publish(node) == [{"plate": "A"}]
    with pytest.raises(Denied, match="constraints: on place, which this broker may not read"):
        node.subscribe("reader", "Sighting", "speed > 3", 0.0)
    a_reader(node, Given(("speed",), ("no_such > 3",)))
    with pytest.raises(Denied, match="constraints: "):
        node.subscribe("reader", "Sighting", "TRUE", 0.0)


def test_what_may_be_visible_is_worked_out_when_rights_change_and_not_for_each_event() -> None:
    book = Book([Given(("plate",)), Given(("speed",), ("plate = 'A'",), ends=20)], [Given()])
    visible = book.visibility.at(START_MS)
    assert all(book.visibility.at(START_MS + ms) is visible for ms in (1, 19_999))
    book.state.revoke(["somebody else's"])
    assert book.visibility.at(START_MS) is visible
    assert book.visibility.at(START_MS + 20_000) is not visible
