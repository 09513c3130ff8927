"""Runs a document word for word: its commands in terminals, its texts as what these print.

    <!-- in: police -->      which terminal the next block is about; a terminal is a shell of its own
    ```sh                    commands, typed into it
    ```text                  what it prints then, line by line; … stands for anything

A block of commands ends when they have ended; one that ends with a broker or a subscriber, when the text after it was
printed. Addresses are the only words that are not the document's: ports that are free take the place of its ports.

`tidings` is a process forked from one that has imported everything, so that forty commands do not take forty seconds.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from tidings.net.dev_network import free_ports

SILENCE_S_MAX = 60.0  # A busy machine takes its time; who says nothing for so long never will.
BLOCK = re.compile(r"(?:<!-- in: (?P<where>[\w-]+) -->\n)?^```(?P<kind>sh|text)\n(?P<body>.*?)^```$", re.M | re.S)
END = "END-OF-BLOCK"
WAITING = re.compile(r"tidings (broker run|subscribe) .*\n\Z")  # Commands that go on after they have printed something.


@dataclass(frozen=True)
class DocumentBlock:
    """Commands, or what they print."""

    terminal: str
    kind: str
    body: str


def blocks_of(document: Path, taken: Mapping[int, int] | None = None) -> list[DocumentBlock]:
    """The blocks of a document, with ports that are free now; `taken` are those of servers that run, by the document's."""
    text, known = document.read_text(), {str(port): real for port, real in (taken or {}).items()}
    ports = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)) - known.keys())
    for port, free in {**dict(zip(ports, free_ports(len(ports)), strict=True)), **known}.items():
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    found, terminal = [], ""
    for match in BLOCK.finditer(text):
        terminal = match["where"] or terminal
        found.append(DocumentBlock(terminal, match["kind"], match["body"]))
    return found


@dataclass
class Terminal:
    """A shell, and what was printed in it since the last command."""

    process: subprocess.Popen[bytes]
    printed: str = ""
    typed: int = 0

    def type(self, commands: str) -> None:
        self.printed, self.typed = "", self.typed + 1
        assert self.process.stdin is not None
        self.process.stdin.write(f"{commands}echo {END} {self.typed} $?\n".encode())
        self.process.stdin.flush()

    @property
    def code(self) -> int | None:
        """How the last command ended; None if it has not."""
        found = re.search(rf"{END} {self.typed} (\d+)\n", self.printed)
        return int(found[1]) if found else None

    def has_ended(self) -> bool:
        return self.code is not None

    def shows(self, text: str) -> bool:
        return re.search(pattern_of(text), self.printed, re.S | re.M) is not None


def pattern_of(text: str) -> str:
    """The lines of a text, in order and perhaps with others between them; … stands for anything."""
    lines = [
        ".*?".join(re.escape(part) for part in line.rstrip().removeprefix("…").removesuffix("…").split("…"))
        for line in text.splitlines()
    ]
    return r".*?\n(?:.*\n)*?[^\n]*?".join(f"{line}" for line in lines)


@dataclass
class Terminals:
    """All terminals of one document, in one folder."""

    folder: Path
    ports: Mapping[int, int] = field(default_factory=dict)
    """Of servers that run, by the ports that the document has for them."""
    _open: dict[str, Terminal] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __enter__(self) -> Terminals:
        tools = self.folder / ".tools"
        tools.mkdir()
        address = str(tools / "nursery")
        shim = tools / "tidings"
        shim.write_text(f"#!{sys.executable} -IS\n{SHIM.replace('ADDRESS', repr(address))}")
        shim.chmod(0o700)
        self._server = subprocess.Popen([sys.executable, "-m", "tests.live.terminals", address])
        _wait_for(Path(address), self._server)
        self._environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200"}
        for name in ("TIDINGS_ORG", "TIDINGS_REGISTRY", "TIDINGS_CLIENT", "TIDINGS_CONTEXT"):
            self._environment.pop(name, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.send_signal(signal.SIGTERM)  # With all that it has forked.
        self._server.wait()
        for terminal in self._open.values():
            terminal.process.kill()
            terminal.process.wait()

    def run(self, document: Path) -> None:
        """Does what the document says; raises AssertionError where something else is printed."""
        blocks = blocks_of(document, self.ports)
        for block, follows in zip(blocks, [*blocks[1:], None], strict=True):
            terminal = self._terminal(block.terminal)
            if block.kind == "text":
                self._until(terminal, block, partial(terminal.shows, block.body))
                continue
            terminal.type(block.body)
            says = follows is not None and (follows.terminal, follows.kind) == (block.terminal, "text")
            if not says or not WAITING.search(block.body):
                self._until(terminal, block, terminal.has_ended)
                assert says or terminal.code == 0, f"{block.body}\n{terminal.printed}"

    def _terminal(self, name: str) -> Terminal:
        if name not in self._open:
            shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert shell.stdout is not None
            self._open[name] = Terminal(shell)
            self._selector.register(shell.stdout, selectors.EVENT_READ, self._open[name])
        return self._open[name]

    def _until(self, terminal: Terminal, block: DocumentBlock, is_so: Callable[[], bool]) -> None:
        last = time.monotonic()
        while not is_so():
            for key, _ in self._selector.select(timeout=1.0):
                assert not isinstance(key.fileobj, int)
                key.data.printed += os.read(key.fileobj.fileno(), 65536).decode(errors="replace")
                last = time.monotonic()
            gave_up = time.monotonic() - last > SILENCE_S_MAX or (terminal.code is not None and not is_so())
            assert not gave_up, f"{block.terminal}: expected\n{block.body}\ngot\n{terminal.printed}"


SHIM = r"""
import array, json, os, signal, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect(ADDRESS)
said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(door, [len(said).to_bytes(4, "big")], [0, 1, 2])
door.sendall(said)
child = int(door.recv(64))
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda number, frame: os.kill(child, number))
sys.exit(int(door.recv(64) or b"1"))
"""


def _wait_for(address: Path, server: subprocess.Popen[bytes]) -> None:
    while not address.exists():
        assert server.poll() is None, "the nursery has ended"
        time.sleep(0.05)


def _serve(address: str) -> None:
    """Forks a `tidings` for each that asks; ends with all of them."""
    import tests.live.warm  # noqa: F401
    import tidings.net.enrolment.server  # noqa: F401

    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _end_all)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(64)
    Path(f"{address}.new").rename(address)
    while True:
        asked, _ = listening.accept()
        if os.fork() == 0:
            _one(asked)
        asked.close()


def _end_all(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.killpg(0, signal.SIGTERM)


def _one(asked: socket.socket) -> None:
    size, descriptors, _, _ = socket.recv_fds(asked, 4, 3)
    said = b""
    while len(said) < int.from_bytes(size, "big"):
        said += asked.recv(65536)
    child = os.fork()
    if child:
        asked.sendall(str(child).encode().ljust(1))
        _, status = os.waitpid(child, 0)
        asked.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
        os._exit(0)
    arguments, folder, environment = json.loads(said)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["tidings", *arguments]
    from tidings.cli import main

    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1 if code else 0)


if __name__ == "__main__":
    _serve(sys.argv[1])
