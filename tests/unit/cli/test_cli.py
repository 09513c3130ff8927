"""The frame of the command line: exit codes, streams and errors, seen from outside as a shell sees them."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidings

pytestmark = pytest.mark.slow  # Each test starts a process or more.

# A program on the same frame, with commands that end in every way a command can end.
ENDINGS = """
import sys
from tidings.cli.terminal import Output, OutputOption, new_app, run, show, tell
from tidings.errors import *

app = new_app()

@app.command("raise")
def raise_(name: str) -> None:
    error = FilterSyntaxError("expected a number", "price > cheap", 9) if name == "syntax" else globals()[name]("so it is")
    print("data before", flush=False)
    raise error

@app.command()
def rows(output: OutputOption = Output.TABLE) -> None:
    tell("two rows")
    show([{"name": "a[red]", "n": 1}, {"name": "b" * 200, "n": None}], output)

@app.command()
def read(path: str) -> None:
    open(path).read()

@app.command()
def wait() -> None:
    print("waiting", flush=True)
    sys.stdin.read()

@app.command()
def load() -> None:
    try:
        raise KeyboardInterrupt  # As in the middle of an import.
    except KeyboardInterrupt as stopped:
        raise RuntimeError("Error calling __set_name__") from stopped

@app.command()
def pour() -> None:
    for number in range(1_000_000):
        print(number)

@app.command()
def echo(text: str) -> None:
    print(text)

@app.command("show")
def show_(texts: list[str]) -> None:
    tell("\\n".join(texts))
    show({"says": text} for text in texts)

run(app)
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = tmp_path_factory.mktemp("endings") / "endings.py"
    script.write_text(ENDINGS)
    return [sys.executable, str(script)]


def run(command: list[str], *arguments: str | bytes, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        encoding="utf-8",
        check=False,
        stdin=subprocess.DEVNULL,
    )


TIDINGS = [str(Path(sys.executable).with_name("tidings"))]


def test_the_installed_command_and_the_module_tell_the_same_version() -> None:
    for command in (TIDINGS, [sys.executable, "-m", "tidings"]):
        done = run(command, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"tidings {tidings.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["doctor", "--help"]])
def test_help_shows_examples(arguments: list[str]) -> None:
    done = run(TIDINGS, *arguments)
    assert done.returncode == 0
    assert "  tidings doctor    " in done.stdout


@pytest.mark.parametrize("arguments", [["--colour"], ["docter"], ["doctor", "--output", "xml"], ["doctor", "extra"]])
def test_wrong_usage_exits_with_2_and_leaves_stdout_empty(arguments: list[str]) -> None:
    done = run(TIDINGS, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Try 'tidings" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [("InputError", 2), ("EventError", 2), ("SetupError", 2), ("Denied", 3), ("PeerError", 1), ("TidingsError", 2)],
)
def test_an_error_is_a_message_on_stderr_and_the_code_of_whose_fault_it_is(
    program: list[str], error: str, code: int
) -> None:
    done = run(program, "raise", error)
    assert (done.returncode, done.stdout, done.stderr) == (code, "data before\n", f"{error}: so it is\n")


def test_a_condition_is_shown_with_a_caret_under_the_spot(program: list[str]) -> None:
    shown = "FilterSyntaxError: expected a number at column 9\n  price > cheap\n          ^\n"
    assert run(program, "raise", "syntax").stderr == shown


def test_our_own_mistakes_are_not_dressed_up_as_the_callers(program: list[str]) -> None:
    done = run(program, "raise", "AssertionError")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_missing_file_is_the_callers_and_gets_no_stack_trace(program: list[str], tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        done = run(program, "read", str(path))
        assert done.returncode == 2
        assert done.stderr.startswith(f"InputError: cannot use {str(path)!r}: {reason}")
        assert "Traceback" not in done.stderr


def test_bytes_that_are_no_utf8_come_back_escaped(program: list[str]) -> None:
    done = run(program, "echo", b"caf\xe9")
    assert (done.returncode, done.stdout) == (0, "caf\\udce9\n")


def test_signs_the_terminal_cannot_show_come_back_escaped(program: list[str]) -> None:
    done = run(program, "echo", "≤", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "\\u2264\n")


def test_json_is_one_object_a_line_and_notes_stay_off_stdout(program: list[str]) -> None:
    done = run(program, "rows", "-o", "json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"name": "a[red]", "n": 1},
        {"name": "b" * 200, "n": None},
    ]
    assert done.stderr == "two rows\n"


def test_a_table_in_a_pipe_keeps_each_row_on_its_line_and_text_as_it_is(program: list[str]) -> None:
    lines = run(program, "rows").stdout.splitlines()
    assert [line.split() for line in lines] == [["name", "n"], ["a[red]", "1"], ["b" * 200]]


def in_terminal(command: list[str], **environ: str) -> bytes:
    """What a command writes when its stdout is a terminal."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    surroundings = {**inherited, "TERM": "xterm", **environ}
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=surroundings)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # How Linux tells that the other end of a terminal is closed.
        pass
    os.close(ours)
    process.wait()
    return written


def test_a_terminal_gets_colours_unless_no_color_asks_for_none(program: list[str]) -> None:
    bad_java = [*TIDINGS, "doctor", "--no-spark"]
    assert b"\x1b[1m" in in_terminal([*program, "rows"])
    assert b"\x1b[1;31m" in in_terminal(bad_java, JAVA_HOME="/nonexistent")
    without = in_terminal(bad_java, JAVA_HOME="/nonexistent", NO_COLOR="1")
    assert b"FAIL  JAVA_HOME" in without
    assert b"31m" not in without


def test_ctrl_c_ends_with_130_and_without_a_stack_trace(program: list[str]) -> None:
    process = subprocess.Popen(
        [*program, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")


def test_ctrl_c_in_the_middle_of_an_import_ends_likewise(program: list[str]) -> None:
    done = run(program, "load")
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("arguments", [["pour"], ["echo", "short"]])
def test_a_reader_who_has_seen_enough_causes_no_complaint(program: list[str], arguments: list[str]) -> None:
    unread, written = os.pipe()
    os.close(unread)
    done = subprocess.run([*program, *arguments], stdout=written, stderr=subprocess.PIPE, text=True, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-", "2>/dev/full"])
@pytest.mark.parametrize(("arguments", "code"), [("rows", 0), ("rows -o json", 0), ("raise syntax", 2), ("wait", 0)])
def test_a_stream_that_is_closed_or_full_changes_nothing_but_what_is_read(
    program: list[str], closed: str, arguments: str, code: int
) -> None:
    command = f"{shlex.join(program)} {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if "2>" in closed:
        assert "so it is" not in done.stdout + done.stderr
        assert "two rows" not in done.stdout


def test_what_others_wrote_does_not_steer_the_terminal(program: list[str]) -> None:
    done = run(program, "show", "\x1b[2J\x9b2J\u202eevil", "münchen")
    assert (done.returncode, done.stdout.split()) == (0, ["says", "\\x1b[2J\\x9b2J\\u202eevil", "münchen"])
    assert done.stderr == "\\x1b[2J\\x9b2J\\u202eevil\nmünchen\n"


def test_doctor_speaks_json_lines() -> None:
    lines = run(TIDINGS, "doctor", "--no-spark", "-o", "json").stdout.splitlines()
    findings = [json.loads(line) for line in lines]
    assert {"name", "ok", "says", "fix", "mend", "required"} == set(findings[0])
    assert "java" in [finding["name"] for finding in findings]
