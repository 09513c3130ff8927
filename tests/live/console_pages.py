"""The console in a real Chromium: the screens, how to open them, and a command that takes a picture of each.

python -m tests.live.console_pages [DIR]        screenshots of London, light and dark, wide and narrow (make shots)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, Page, sync_playwright

from tidings.console import Console, ConsoleSettings, London

SCREENS = ("network", "events", "why", "trace", "rights", "pipelines", "papers", "simulate")
WIDE, NARROW = (1280, 860), (400, 800)
_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own: Playwright's blocking calls have the main one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def chromium_program() -> str | None:
    """The system's Chromium; Playwright brings none here."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_program(), args=arguments)
        yield browser
        browser.close()


def opened(browser: Browser, url: str, size: tuple[int, int] = WIDE, theme: Any = "light") -> Page:
    """A page that is logged in, at the map."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("svg.map a.node")
    return page


def go(page: Page, screen: str, query: str = "") -> None:
    """Another screen of the same page."""
    page.evaluate("place => { location.hash = place; }", f"/{screen}?{query}")
    page.wait_for_function(
        "title => document.querySelector('h1')?.textContent.startsWith(title)", arg=screen.capitalize()
    )


def fill_in(page: Page) -> None:
    """Something to see on each screen that asks for something; each wait is for what it shows."""
    go(page, "events", "type=Numberplate&client=yard/desk")
    page.wait_for_selector("tbody a:has-text('Trace')")
    event = page.locator("tbody a:has-text('Trace')").first.get_attribute("href") or ""
    page.locator("tbody button:has-text('Why')").first.click()
    page.wait_for_selector("#conditions")
    page.fill("#conditions", "speed > 10\nspeed > 10 AND area = 'EC1'\nplate LIKE 'Z%'\nsped > 3")
    page.click("text=Explain")
    page.fill("#tried", "speed > 40 AND area LIKE 'E%'")
    page.click("text=Try on recent events")
    page.wait_for_selector("text=Clause that decided")
    page.evaluate("place => { sessionStorage.setItem('trace', place); }", event)


def simulate(page: Page) -> None:
    """A simulated network with an event on its way."""
    go(page, "simulate", "protocol=hermes&nodes=24&subscriptions=40&seed=7")
    for button in ("10 s", "Publish an event", "10 ms", "Next message", "Next message", "10 ms"):
        with page.expect_response("**/api/simulate"):
            page.get_by_role("button", name=button, exact=True).click()


def pictures(folder: Path) -> None:
    """A picture of each screen, in both themes and both widths."""
    folder.mkdir(parents=True, exist_ok=True)
    loop = LoopThread()
    london = loop.run(London(spark=True).__aenter__())
    figures = Path("figures") if Path("figures").is_dir() else None
    settings = ConsoleSettings(
        clients=london.console_clients,
        listen="127.0.0.1:0",
        org=london.organisation,
        figures=figures,
        pipelines=[london.pipeline],
    )
    console = loop.run(Console(settings).__aenter__())
    try:
        with chromium() as browser:
            for theme, size in (("light", WIDE), ("dark", WIDE), ("dark", NARROW)):
                page = opened(browser, console.url, size, theme)
                for screen in SCREENS:
                    _show(page, screen)
                    page.screenshot(path=folder / f"{screen}-{theme}-{size[0]}.png")
    finally:
        loop.run(console.__aexit__(None, None, None))
        loop.run(london.__aexit__(None, None, None))
        loop.stop()


def _show(page: Page, screen: str) -> None:
    if screen == "network":
        page.wait_for_selector("svg.map text:has-text('/s in')")
    elif screen == "why":
        fill_in(page)
    elif screen == "trace":
        page.evaluate("() => { location.hash = sessionStorage.getItem('trace'); }")
        page.wait_for_selector("text=Who received it")
    elif screen == "events":
        go(page, screen, "type=Numberplate&client=police/desk&where=speed+%3E+20")
        page.wait_for_selector("tbody tr:nth-child(12)")
    elif screen == "simulate":
        simulate(page)
    elif screen == "pipelines":
        go(page, screen)
        page.wait_for_selector("text=detective", timeout=300_000)
        page.click("button:has-text('detective')")
        page.wait_for_selector("dialog td")
        page.keyboard.press("Escape")
    else:
        go(page, screen, "client=police/camera")
        page.wait_for_selector("tbody tr")


def _into_the_guide(folder: Path) -> None:
    """The pictures that README and guide show."""
    for screen, name in (("network-light", "console"), ("simulate-light", "console-simulate")):
        shutil.copyfile(folder / f"{screen}-{WIDE[0]}.png", Path("docs/figures") / f"{name}.png")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Screenshots of the console's screens, light and dark.")
    arguments.add_argument("folder", nargs="?", type=Path, help="out/console, and the guide's pictures are made anew")
    folder = arguments.parse_args().folder
    out = folder or Path("out/console")
    pictures(out)
    if folder is None:
        _into_the_guide(out)
    print(f"wrote {len(list(out.glob('*.png')))} pictures to {out}")
