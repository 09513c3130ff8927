"""A real network of two organisations with a console in front of it, and an HTTP client as any program can be one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.live.console_pages import LoopThread
from tests.live.together import Together
from tidings.console import Console, ConsoleSettings
from tidings.net import Client, DevNetwork, ReadAccess
from tidings.security import Mode

ODD_NAME = """o'hara "<b>desk<b onclick=x>"""


class Show(NamedTuple):
    """A console in front of a network, and a client that publishes."""

    console: Console
    camera: Client
    loop: LoopThread

    def publish(self, *events: dict[str, Any]) -> list[str]:
        return self.loop.run(self.camera.publish_many("Numberplate", events))


@contextmanager
def network_with_console(folder: Path, *, changes_rights: bool = False) -> Iterator[Show]:
    loop = LoopThread()
    layout = DevNetwork(
        brokers={"police": 1, "ccs": 1},
        readers={"ccs": ReadAccess(("plate",))},
        subscribers=("desk", ODD_NAME),
        first_port=0,
        registry=True,
        mode=Mode.ATTRIBUTE,
    )

    async def start() -> tuple[Together, Console, Client]:
        network = await Together(folder, layout).__aenter__()
        files = network.laid.clients
        settings = ConsoleSettings(
            clients=[files[who] for who in ("police/camera", "police/desk", "ccs/desk", f"police/{ODD_NAME}")],
            listen="127.0.0.1:0",
            registry=str(network.laid.folder / "police/tidings.db"),
            org=network.laid.folder / "police" if changes_rights else None,
            figures=Path("figures"),
            pipelines=[folder / "none.toml"],
            audit=folder / "audit.jsonl",
        )
        console = await Console(settings).__aenter__()
        return network, console, await network.client("police/camera")

    network, console, camera = loop.run(start())
    yield Show(console, camera, loop)
    loop.run(console.__aexit__(None, None, None))
    loop.run(network.__aexit__(None, None, None))
    loop.stop()


class Browserless:
    """Requests as any program can make them."""

    def __init__(self, console: Console) -> None:
        self.address, self.cookie, self.csrf = console.address, "", ""
        _, headers, said = self.ask("POST", "/api/session", {"key": console.sessions.key})
        self.cookie, self.csrf = headers["set-cookie"].partition(";")[0], said["csrf"]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        with closing(http.client.HTTPConnection(self.address, timeout=30)) as link:
            sent = {"Cookie": self.cookie, **headers}
            link.request(method, path, json.dumps(body) if body is not None else None, sent)
            answer = link.getresponse()
            content = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return (
                answer.status,
                {k.lower(): v for k, v in answer.headers.items()},
                json.loads(content) if is_json else content,
            )

    def post(self, path: str, body: Any) -> Any:
        status, _, said = self.ask("POST", path, body, **{"X-Tidings-CSRF": self.csrf})
        assert status == 200, said
        return said

    def batches(self, query: str) -> Iterator[dict[str, Any]]:
        """What a feed sends to a page, as it is sent."""
        with closing(http.client.HTTPConnection(self.address, timeout=30)) as link:
            link.request("GET", f"/api/feed?{query}", headers={"Cookie": self.cookie})
            answer = link.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
