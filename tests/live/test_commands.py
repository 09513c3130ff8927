"""The live commands as a user types them, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from tidings.net import DevNetwork, lay_out, read_broker
from tidings.net.dev_network import free_ports

pytestmark = pytest.mark.live


def tidings(*arguments: str, code: int = 0) -> list[dict[str, object]]:
    """Runs a command with JSON output; its rows."""
    command = [sys.executable, "-m", "tidings", *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def until(stream: IO[str] | None, word: str) -> None:
    """Reads lines until one has this word in it."""
    assert stream is not None
    for line in stream:
        if word in line:
            return
    raise AssertionError(f"ended without saying {word}")


def test_a_network_is_laid_out_run_used_looked_at_and_drained(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    made = tidings("init", str(tmp_path / "london"), "--mode", "plain", "--port", str(min(port, 65_000)))
    files = {str(row["name"]): str(row["file"]) for row in made}
    camera, desk = files["police/camera"], files["police/desk"]
    run = [sys.executable, "-m", "tidings", "broker", "run", "--config", files["police-1"], "--log", "error"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as broker:
        try:
            until(broker.stdout, "joined")  # The other two are not there: it begins without them.
            listen = [
                "subscribe",
                "Numberplate",
                "speed > 20",
                "--as",
                desk,
                "--count",
                "1",
                "--durable",
                "d",
                "-o",
                "json",
            ]
            with subprocess.Popen(
                [sys.executable, "-m", "tidings", *listen], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as heard:
                until(heard.stderr, "subscribed")
                (said,) = tidings("publish", "Numberplate", '{"plate": "AB", "speed": 31.0}', "--as", camera)
                assert heard.stdout is not None
                event = json.loads(heard.stdout.readline())
            assert (event["id"], event["data"]) == (said["id"], {"plate": "AB", "speed": 31.0})
            (status,) = tidings("broker", "status", "--as", camera)
            assert (status["broker"], status["joined"], status["durables"]) == ("police-1", True, 1)
            (hop,) = tidings("trace", str(said["id"]), "--as", camera)
            assert hop["readable"] == ["plate", "speed"]
            tidings("publish", "Numberplate", '{"plat": 1}', "--as", camera, code=1)
            tidings("publish", "Numberplate", '{"plate": "AB"}', "--as", desk, code=3)
            assert tidings("dlq", "ls", "--as", desk) == []
            tidings("broker", "drain", "--as", camera)
            until(broker.stdout, "stopped")
            assert broker.wait(60) == 0
        finally:
            broker.kill()


def test_a_broker_is_run_by_options_alone(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "n", DevNetwork(first_port=0, brokers={"police": 1}))
    config = read_broker(laid.brokers["police-1"])
    words = ("name", "domain", "listen", "key", "certificate", "trusted", "data", "network_key")
    options = [text for word in words for text in (f"--{word.replace('_', '-')}", str(getattr(config, word)))]
    files = [*(("--type", str(file)) for file in config.types), *(("--token", str(file)) for file in config.tokens)]
    run = ["broker", "run", *options, *(text for pair in files for text in pair)]
    with subprocess.Popen([sys.executable, "-m", "tidings", *run], stdout=subprocess.PIPE, text=True) as broker:
        try:
            until(broker.stdout, "joined")
            (status,) = tidings("broker", "status", "--as", str(laid.clients["police/desk"]))
            assert (status["broker"], status["joined"]) == ("police-1", True)
        finally:
            broker.kill()


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidings", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_commands_end_cleanly_when_they_are_interrupted_or_nobody_reads_and_a_port_is_taken_once(
    tmp_path: Path,
) -> None:
    laid = lay_out(tmp_path / "n", DevNetwork(first_port=0, brokers={"police": 1}))
    as_camera = ("--as", str(laid.clients["police/camera"]))
    run = ("broker", "run", "--config", str(laid.brokers["police-1"]), "--log", "error")
    with started(*run) as broker:
        try:
            until(broker.stdout, "joined")
            with started(*run, "--data", str(tmp_path / "other")) as second:
                out, err = second.communicate(timeout=120)
            assert (second.returncode, out, err.count("\n")) == (2, "", 1)
            assert "is in use; does this broker or server run already?" in err

            with started("subscribe", "Numberplate", *as_camera) as interrupted:
                until(interrupted.stderr, "subscribed")
                interrupted.send_signal(signal.SIGINT)
                assert interrupted.communicate(timeout=60) == ("", "")
            assert interrupted.returncode == 130

            unread, written = os.pipe()
            os.close(unread)
            listen = [sys.executable, "-m", "tidings", "subscribe", "Numberplate", *as_camera]
            with subprocess.Popen(listen, stdout=written, stderr=subprocess.PIPE, text=True) as unheard:
                os.close(written)
                until(unheard.stderr, "subscribed")
                with started("publish", "Numberplate", "-", "-q", *as_camera, stdin=subprocess.PIPE) as piped:
                    _, said = piped.communicate('{"plate": "A"}\n{"plate": "B"}\nno\n', timeout=60)
                assert (piped.returncode, "published 2 events" in said, "line 3: not JSON" in said) == (1, True, True)
                assert unheard.communicate(timeout=60)[1] == ""

            (types,) = tidings("ls", "types", *as_camera)
            assert (types["name"], types["mode"]) == ("Numberplate", "plain")
            (measured,) = tidings(
                "bench", "latency", "Numberplate", '{"plate": "A"}', "-n", "20", "--rate", "500", *as_camera
            )
            assert (measured["events"], measured["lost"]) == (20, 0)
            tidings("subscribe", "Numberplate", "--count", "1", "--timeout", "0.2", *as_camera, code=1)
            broker.send_signal(signal.SIGINT)
            out, err = broker.communicate(timeout=60)
            assert (broker.returncode, "stopped" in out, err) == (0, True, "")
        finally:
            broker.kill()
