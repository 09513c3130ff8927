"""The console, in a real Chromium and by an HTTP client, in front of a real network of two organisations."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.live.console_network import ODD_NAME, Browserless, Show, network_with_console
from tests.live.console_pages import NARROW, SCREENS, chromium, chromium_program, go, opened, simulate
from tidings.console import Console
from tidings.console.feeds import SHOWN_PER_TICK
from tidings.console.server import CONNECTIONS_MAX
from tidings.net import BlockingClient
from tidings.security import Identity
from tidings.store import Registry

pytestmark = [pytest.mark.live, pytest.mark.slow]

HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"&amp;"""
SECRET = "N1-SECRET"


@pytest.fixture(scope="module")
def show(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Show]:
    with network_with_console(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium_program() is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium; apt-get install chromium")
    with chromium() as found:
        yield found


@pytest.fixture
def page(show: Show, browser: Browser) -> Iterator[Page]:
    page = opened(browser, show.console.url)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
    yield page
    page.context.close()
    assert wrong == []


# ── Without a browser ──


def test_nobody_gets_anything_without_a_session(show: Show) -> None:
    stranger = Browserless(show.console)
    stranger.cookie = ""
    for path in ("me", "network", "types", "rights", "papers", "feed?type=Numberplate", "trace?event=a.0.1"):
        assert stranger.ask("GET", f"/api/{path}")[0] == 401
    assert stranger.ask("GET", "/figures/irbr/4a.svg")[0] == 401
    assert stranger.ask("POST", "/api/session", {"key": "guessed"})[0] == 403


def test_other_sites_and_other_hosts_are_refused(show: Show) -> None:
    ours = Browserless(show.console)
    question = {"type": "Numberplate", "where": "TRUE"}
    assert ours.ask("POST", "/api/try", question)[0] == 403  # No CSRF token.
    assert (
        ours.ask("POST", "/api/try", question, **{"X-Tidings-CSRF": ours.csrf, "Origin": "https://evil.example"})[0]
        == 403
    )
    assert ours.ask("GET", "/api/me", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert ours.ask("GET", "/", Host="evil.example")[0] == 403
    assert ours.ask("GET", "/api/me")[0] == 200


def test_it_reads_only_unless_it_was_allowed_to_publish(show: Show) -> None:
    ours = Browserless(show.console)
    event = {"type": "Numberplate", "values": {"plate": "AB12CDE"}}
    status, _, said = ours.ask("POST", "/api/publish", event, **{"X-Tidings-CSRF": ours.csrf})
    assert (status, "--allow-publish" in said["why"]) == (403, True)


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/figures/../claims.json", "/web/console.css"])
def test_no_other_files_can_be_asked_for(show: Show, path: str) -> None:
    assert Browserless(show.console).ask("GET", path)[0] == 404


def test_every_answer_allows_only_our_own_scripts(show: Show) -> None:
    ours = Browserless(show.console)
    for path in ("/", "/console.mjs", "/api/me", "/api/nothing"):
        policy = ours.ask("GET", path)[1]["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy


def test_who_has_no_right_to_a_value_does_not_get_it_by_any_question(show: Show) -> None:
    ours = Browserless(show.console)
    mine = "client=ccs/desk&type=Numberplate"
    batches = ours.batches(mine)
    seen = [next(batches)]
    (id,) = show.publish({"plate": "CC1", "area": SECRET, "speed": 77.125})
    while not any(event["id"] == id for batch in seen for event in batch["events"]):
        seen.append(next(batches))
    answers: list[Any] = [seen]
    asked = {"client": "ccs/desk", "type": "Numberplate"}
    answers.append(ours.post("/api/try", {**asked, "where": "plate = 'CC1' AND speed > 3"}))
    answers.append(
        ours.post("/api/why", {**asked, "event": {"plate": "CC1"}, "conditions": ["speed > 3", "plate = 'x'"]})
    )
    answers += [ours.ask("GET", f"/api/{what}?{mine}&event={id}")[2] for what in ("trace", "rights", "types", "broker")]
    text = json.dumps(answers)
    assert "CC1" in text
    assert SECRET not in text
    assert "77.125" not in text
    assert answers[1]["outcomes"]["UNKNOWN"] >= 1  # Neither a match nor none: it depends on what ccs may not read.
    assert [row["outcome"] for row in answers[2]["rows"]] == ["UNKNOWN", "FALSE"]
    status, _, said = ours.ask("GET", f"/api/feed?{mine}&where=speed+%3E+3")
    assert (status, said["error"]) == (403, "Denied")


def test_a_flood_of_events_reaches_a_page_as_a_few_and_a_number(show: Show) -> None:
    batches = Browserless(show.console).batches("client=police/desk&type=Numberplate&where=area+%3D+'flood'")
    next(batches)
    show.publish(*({"plate": f"F{n}", "area": "flood"} for n in range(500)))
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["total"] < 500:
        seen.append(next(batches))
    assert max(len(batch["events"]) for batch in seen) <= SHOWN_PER_TICK
    assert sum(len(batch["events"]) + batch["skipped"] for batch in seen) == 500


def test_durable_subscriptions_are_shown_with_the_name_of_their_type(show: Show) -> None:
    with BlockingClient(show.console.clients["ccs/desk"].config) as desk:
        desk.subscribe("Numberplate", "plate = 'D'", durable="d")
        rows = Browserless(show.console).ask("GET", "/api/subscriptions?client=ccs/desk")[2]
    assert ("d", "Numberplate") in {(row["name"], row["type"]) for row in rows}


def test_a_log_in_is_in_the_audit_log(show: Show) -> None:
    Browserless(show.console)
    file = show.console.settings.audit
    assert file is not None
    assert json.loads(file.read_text().splitlines()[-1])["action"] == "log in"


def test_actions_need_to_be_allowed_and_the_right_to_them_and_are_in_the_audit_log(show: Show, tmp_path: Path) -> None:
    ours = Browserless(show.console)
    drain = {"client": "police/camera", "action": "drain"}
    assert ours.ask("POST", "/api/act", drain, **{"X-Tidings-CSRF": ours.csrf})[0] == 403

    async def start() -> Console:
        allowed = replace(show.console.settings, allow_actions=True, audit=tmp_path / "audit.jsonl")
        return await Console(allowed).__aenter__()

    console = show.loop.run(start())
    theirs = Browserless(console)
    status, _, said = theirs.ask(
        "POST", "/api/act", {**drain, "client": "police/desk"}, **{"X-Tidings-CSRF": theirs.csrf}
    )
    assert (status, said["error"]) == (403, "Denied")  # By the broker: the desk does not administer it.
    assert theirs.post("/api/act", {"client": "police/desk", "action": "replay"}) == [{"replayed": 0, "left": 0}]
    show.loop.run(console.__aexit__(None, None, None))
    audit = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [each["action"] for each in audit] == ["log in", "drain", "drain refused", "replay", "replay done"]
    assert {each["user"] for each in audit} == {"operator"}


def test_past_events_are_replayed_if_that_is_allowed_and_the_broker_keeps_nothing_of_it(show: Show) -> None:
    ours = Browserless(show.console)
    ids = show.publish(*({"plate": f"R{n}", "area": "REPLAY"} for n in range(3)))
    asked = {"client": "police/desk", "type": "Numberplate", "where": "area = 'REPLAY'", "back_s": 600}
    assert ours.ask("POST", "/api/replay", asked, **{"X-Tidings-CSRF": ours.csrf})[0] == 403

    async def start() -> Console:
        return await Console(replace(show.console.settings, allow_actions=True, audit=None)).__aenter__()

    console = show.loop.run(start())
    theirs = Browserless(console)
    assert theirs.ask("POST", "/api/replay", {**asked, "back_s": 0}, **{"X-Tidings-CSRF": theirs.csrf})[0] == 400
    name = theirs.post("/api/replay", asked)["replay"]
    seen: list[str] = []
    for batch in theirs.batches(f"client=police/desk&type=Numberplate&replay={name}"):
        seen += [event["id"] for event in batch["events"] if event["id"] not in seen]
        if len(seen) == len(ids):
            break
    assert seen == ids
    kept = theirs.ask("GET", "/api/subscriptions?client=police/desk")[2]
    assert name in {row["name"] for row in kept}
    show.loop.run(console.__aexit__(None, None, None))
    kept = ours.ask("GET", "/api/subscriptions?client=police/desk")[2]
    assert name not in {row["name"] for row in kept}


def test_who_holds_the_console_up_with_a_condition_is_refused(show: Show) -> None:
    ours = Browserless(show.console)
    asked = {"client": "police/desk", "type": "Numberplate"}
    long = " OR ".join(f"speed = {n}" for n in range(12_000))
    assert ours.post("/api/try", {**asked, "where": long})["check"]["ok"] is False
    status, _, said = ours.ask(
        "POST", "/api/why", {**asked, "event": {}, "conditions": [long]}, **{"X-Tidings-CSRF": ours.csrf}
    )
    assert (status, said["error"]) == (400, "FilterTooLarge")


def test_strangers_who_hold_connections_keep_nobody_out(show: Show) -> None:
    ours = Browserless(show.console)
    host, _, port = show.console.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 20):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert ours.ask("GET", "/api/me")[0] == 200


def test_a_login_key_that_is_no_text_is_refused_and_audited(show: Show) -> None:
    stranger = Browserless(show.console)
    stranger.cookie = ""
    assert stranger.ask("POST", "/api/session", {"key": "\ud800"})[0] == 403
    file = show.console.settings.audit
    assert file is not None
    last = json.loads(file.read_text().splitlines()[-1])
    assert (last["action"], last["user"], last["by"]) == ("log in refused", "", "login key")


def test_a_revoked_right_is_shown_with_who_has_heard_of_it(show: Show) -> None:
    ours, files = Browserless(show.console), Path(show.console.settings.registry).parent
    authority = Identity.from_pem((files / "authority.pem").read_bytes())
    now = time.time_ns() // 1_000_000
    with Registry.open(show.console.settings.registry, now_ms=now) as registry:
        holder = registry.domains.key_of(f"ccs/{ODD_NAME}")
        (known,) = registry.grants.all(holder=holder)
        registry.grants.revoke(known.token, by_key=authority.public_key, now_ms=now, signer=authority)
    rows = ours.ask("GET", "/api/rights?client=police/camera")[2]["rows"]
    (row,) = [row for row in rows if row["who"] == f"ccs/{ODD_NAME}"]
    assert (row["state"], row["revoked"]) == ("revoked", known.token.revocation_ids[-1])
    heard: list[dict[str, Any]] = []
    until = time.monotonic() + 30
    while not any(each["heard"] for each in heard) and time.monotonic() < until:
        heard = ours.ask("GET", f"/api/heard?client=police/camera&revocation={row['revoked']}")[2]
    assert heard == [{"broker": "ccs/ccs-1", "heard": True}]


# ── In a browser ──


def test_the_map_shows_brokers_and_leads_to_their_pages(page: Page) -> None:
    assert page.locator("svg.map a.node").count() == 2
    assert page.locator("svg.map path.link").count() == 1
    page.locator("td a", has_text="police/police-1").click()
    expect(page.locator("h1")).to_contain_text("police/police-1")
    expect(page.get_by_role("region", name="Links")).to_contain_text("ccs/ccs-1")
    expect(page.locator("main")).to_contain_text("Its certificate ends")
    assert "login" not in page.url


def test_hostile_values_and_names_are_text(show: Show, page: Page) -> None:
    page.select_option("#client", f"police/{ODD_NAME}")
    go(page, "events", f"client=police/{ODD_NAME}&type=Numberplate&where=speed+%3D+13.0")
    expect(page.get_by_role("status")).to_contain_text("No event has matched yet")
    (id,) = show.publish({"plate": HOSTILE, "area": HOSTILE, "speed": 13.0})
    cell = page.locator("tbody td", has_text="<img src=x").first
    expect(cell).to_have_text(HOSTILE)
    page.locator("tbody button", has_text="Why").first.click()
    page.fill("#conditions", f"plate = '{HOSTILE}'\nplate = '{HOSTILE.replace(chr(39), chr(39) * 2)}'\nspeed > 20")
    page.click("text=Explain")
    outcomes = page.get_by_role("region", name="Verdicts").locator(".badge")
    expect(outcomes).to_have_text(["ERROR", "TRUE", "FALSE"])
    go(page, "trace", f"event={id}")
    expect(page.get_by_role("region", name="Who received it")).to_contain_text(ODD_NAME)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("main img, main script, main [onclick], main [onerror]").count() == 0


def test_a_wrong_condition_is_shown_with_the_spot(page: Page) -> None:
    go(page, "events", "type=Numberplate")
    page.fill("#where", "sped > 20")
    alert = page.locator(".spot")
    expect(alert).to_contain_text("at character 1")
    expect(alert).to_contain_text("did you mean 'speed'?")
    page.fill("#where", "speed > 20")
    expect(page.locator("form .chip").first).to_have_text("speed ∈ (20.0, ∞)")


def test_an_event_is_inspected_by_keyboard(show: Show, page: Page) -> None:
    go(page, "events", "client=ccs/desk&type=Numberplate&where=plate+%3D+'INSPECTED'")
    expect(page.get_by_role("status")).to_contain_text("No event has matched yet")
    (id,) = show.publish({"plate": "INSPECTED", "area": SECRET})
    page.get_by_role("button", name="Inspect").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(id)
    expect(dialog.get_by_role("row", name="area")).to_contain_text("hidden from you")
    expect(dialog.get_by_role("row", name="plate")).to_contain_text("INSPECTED")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Inspect").first).to_be_focused()


def test_the_keyboards_focus_stays_where_it_was_when_a_page_is_drawn_anew(show: Show, page: Page) -> None:
    link = page.locator("table a").nth(1)
    link.focus()
    page.evaluate("() => { document.querySelector('table').dataset.before = 'yes'; }")
    show.publish({"plate": "FOCUS"})  # So that the numbers change.
    page.wait_for_function("() => !document.querySelector('table').dataset.before")
    expect(page.locator("table a").nth(1)).to_be_focused()


def test_a_condition_is_completed_by_keyboard_and_kept(page: Page) -> None:
    go(page, "events", "type=Numberplate")
    page.fill("#where", "sp")
    page.press("#where", "Control+Space")
    expect(page.locator("#where")).to_have_value("speed ")
    page.locator("#where").press_sequentially("> 41")
    page.click("text=Keep")
    page.fill("#where", "")
    page.click("button.chip >> text=speed > 41")
    expect(page.locator("#where")).to_have_value("speed > 41")
    assert "where=speed+%3E+41" in page.url


def test_names_and_operators_are_offered_and_taken_with_the_arrow_keys(page: Page) -> None:
    go(page, "events", "type=Numberplate")
    field = page.locator("#where")
    field.press_sequentially("s")
    options = page.get_by_role("listbox", name="Completions").get_by_role("option")
    expect(options).to_contain_text(["seen_at", "speed", "SUBSTRING("])
    field.press("ArrowDown")
    field.press("ArrowUp")
    field.press("Escape")
    expect(options).to_have_count(0)
    field.press_sequentially("p")
    field.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", re.compile("-0$"))
    field.press("Tab")
    expect(field).to_have_value("speed ")
    field.press("Control+Space")
    expect(options.nth(0)).to_have_text("=")
    field.press("Escape")
    field.press_sequentially("> 41 AND plate = 's")  # Nothing is offered inside a text.
    expect(options).to_have_count(0)


def test_the_boxes_of_a_condition_are_drawn_over_its_axes(page: Page) -> None:
    go(page, "why", "type=Numberplate")
    page.fill("#tried", "speed > 20 AND speed <= 40 AND area LIKE 'E%' OR speed > 90")
    drawing = page.get_by_role("img", name="2 boxes over area and speed")
    expect(drawing.locator("rect.box")).to_have_count(2)
    texts = drawing.locator("text").all_text_contents()
    assert {"20.0", "40.0", "90.0", "'E'"} <= set(texts)
    page.fill("#tried", "LENGTH(plate) > 3")
    expect(drawing).to_have_count(0)


def test_a_condition_is_compared_with_ones_own_and_with_kept_ones(show: Show, page: Page) -> None:
    with BlockingClient(show.console.clients["police/desk"].config) as desk:
        desk.subscribe("Numberplate", "speed > 30 AND area = 'COVER'")
        go(page, "events", "client=police/desk&type=Numberplate")
        page.fill("#where", "speed > 1")
        page.click("text=Keep")
        go(page, "why", "client=police/desk&type=Numberplate&where=speed+%3E+2")
        page.click("text=Try on recent events")
        rows = page.get_by_role("region", name="Covering").locator("tbody tr")
        expect(rows.filter(has_text="= 'COVER'")).to_contain_text("covers")
        expect(rows.filter(has_text="speed > 1")).to_contain_text("is covered by")


def test_a_simulated_network_is_stepped_and_broken_on_its_map(page: Page) -> None:
    simulate(page)
    expect(page.locator("svg.map")).to_have_attribute("aria-label", re.compile("24 brokers.*tree of Event"))
    assert page.locator("svg.map path.branch").count() > 5
    before = page.locator(".tile").first.inner_text()
    page.click("button:text-is('1 s')")
    expect(page.locator(".tile").first).not_to_have_text(before)
    page.select_option("#kind", "ring")
    page.locator("svg.map a.node").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Crash it").click()
    expect(page.locator("svg.map a.node.away")).to_have_count(1)
    page.get_by_role("button", name="Restart it").click()
    expect(page.locator("svg.map a.node.away")).to_have_count(0)


def test_a_map_is_saved_as_svg_and_as_png(page: Page) -> None:
    for name, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save {name}").click()
        content = Path(saved.value.path()).read_bytes()
        assert content.startswith(begins)
        assert len(content) > 1000
        if name == "SVG":
            assert b"stroke=" in content
            assert b"href" not in content


def test_a_session_has_its_own_simulated_network(show: Show) -> None:
    one, other = Browserless(show.console), Browserless(show.console)
    begin = {"action": "begin", "protocol": "flooding", "nodes": 5}
    assert len(one.post("/api/simulate", begin)["brokers"]) == 5
    status, _, said = other.ask("POST", "/api/simulate", {"action": "look"}, **{"X-Tidings-CSRF": other.csrf})
    assert (status, "begin one" in said["why"]) == (404, True)
    assert one.ask("POST", "/api/simulate", begin)[0] == 403  # Without a CSRF token.


def test_a_trace_shows_who_could_read_what(show: Show, page: Page) -> None:
    with BlockingClient(show.console.clients["ccs/desk"].config) as desk:
        desk.subscribe("Numberplate", "plate = 'TRACED'")
        (id,) = show.publish({"plate": "TRACED", "area": "EC1"})
        go(page, "trace", f"client=ccs/desk&event={id}")
        read = page.get_by_role("region", name="Who could read which attribute")
        expect(read.locator("tr.group")).to_have_text(
            [re.compile("ccs.*sealed.*reads"), re.compile("police.*reads.*reads")]
        )
        expect(read.locator("tr", has_text="ccs/ccs-1")).to_have_text(re.compile("sealed.*reads"))
        expect(read.locator("tr", has_text="police/police-1")).to_have_text(re.compile("reads.*reads"))
        expect(page.locator("svg.map path.link.path")).to_have_count(1)


def test_rights_are_a_matrix_for_administrators_and_ones_own_for_others(page: Page) -> None:
    go(page, "rights", "client=police/camera")
    rights = page.get_by_role("region", name="Rights to Numberplate")
    expect(rights.locator("tbody tr", has_text="ccs/desk")).to_have_count(1)
    expect(rights.locator("tbody tr", has_text="ccs/desk").locator(".good >> text=✓")).to_have_count(1)
    rights.locator("tbody tr", has_text="ccs/desk").locator("summary").click()
    expect(rights).to_contain_text("ccs/desk loses it; nobody has a right derived from it here.")
    assert "police to ccs/desk" in (page.get_by_role("img").get_attribute("aria-label") or "")
    go(page, "rights", "client=police/desk")
    expect(page.get_by_role("region", name="Rights to Numberplate").locator("tbody tr")).to_have_count(1)


def test_every_screen_is_accessible_fits_a_phone_and_loads_only_from_here(show: Show, browser: Browser) -> None:
    page = opened(browser, show.console.url, NARROW)
    page.emulate_media(reduced_motion="reduce")  # A new row that fades in has another contrast for a second.
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    id = ""
    for screen in SCREENS:
        go(page, screen, f"client=police/camera&type=Numberplate&event={id}")
        if screen == "events":
            expect(page.get_by_role("status")).to_contain_text(re.compile("since the feed|No event"))
            (id,) = show.publish({"plate": "AX1", "area": "EC1", "speed": 20.0})
        if screen == "why":
            page.fill("#conditions", "speed > 10\nspeed >")
            page.click("text=Explain")
        if screen == "simulate":
            simulate(page)
        page.wait_for_selector("main tbody tr")
        for theme, rules in (("light", ["wcag2a", "wcag2aa", "wcag21aa"]), ("dark", ["color-contrast"])):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            found = Axe().run(page, options={"runOnly": rules})
            assert [each["id"] for each in found.response["violations"]] == [], (screen, theme, found.generate_report())
        assert page.evaluate("() => document.documentElement.scrollWidth") <= NARROW[0], screen
    page.context.close()
    assert {url.split("/")[2] for url in asked} == {show.console.address}


def test_a_page_says_so_when_the_console_has_gone(show: Show, browser: Browser) -> None:
    async def start() -> Console:
        return await Console(replace(show.console.settings, audit=None)).__aenter__()

    console = show.loop.run(start())
    page = opened(browser, console.url)
    show.loop.run(console.__aexit__(None, None, None))
    expect(page.locator("#banner")).to_contain_text("is `tidings console` still running?", timeout=15_000)
    page.context.close()


def test_who_is_not_logged_in_reads_what_to_do(show: Show, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"http://{show.console.address}/")
    expect(page.locator("main")).to_contain_text("Open the URL that tidings console printed")
    page.close()
