"""The tree itself: doors say their purpose, documents tell the truth, examples run, nothing points at one machine."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tidings"
EXAMPLES = sorted((ROOT / "examples").glob("*/main.py"))
NOT_OURS = {"__pycache__", "build", "dist", "out", "spark-warehouse", "metastore_db", "results", "target"}
TEXT = {"", ".md", ".py", ".toml", ".lock", ".txt", ".json", ".yaml", ".yml", ".svg", ".cfg", ".in"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def files(*suffixes: str) -> Iterator[Path]:
    for folder, names, found in os.walk(ROOT):
        names[:] = sorted(name for name in names if name == ".ci" or not (name in NOT_OURS or name.startswith(".")))
        for name in sorted(found):
            path = Path(folder, name)
            if path.suffix in (suffixes or TEXT):
                yield path


SOURCES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(door.parent.name for door in SOURCE.glob("*/__init__.py"))
DOCUMENTS = sorted(files(".md"))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_its_purpose(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, f"{relative(path)} has no docstring"
    assert len(said.split()) >= 4, f"{relative(path)}: {said!r} says too little"


@pytest.mark.parametrize("room", ROOMS)
def test_every_door_lists_what_others_may_use(room: str) -> None:
    names = [target.id for target in door_assignments(room) if isinstance(target, ast.Name)]
    assert "__all__" in names


def door_assignments(room: str) -> Iterator[ast.expr]:
    for node in ast.parse((SOURCE / room / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign):
            yield from node.targets
        if isinstance(node, ast.AnnAssign):
            yield node.target


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_rooms_are_entered_by_their_doors(path: Path) -> None:
    own_room = path.relative_to(SOURCE).parts[0]
    for module in imported_modules(path):
        room, _, inside = module.removeprefix("tidings.").partition(".")
        if room in ROOMS and room != own_room:
            assert not inside, f"{relative(path)} imports {module}; take it from tidings.{room}"


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tidings."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidings."):
            yield str(node.module)


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = re.compile(r"(util|utils|common|helpers?|base|misc)(\.py)?$")
    assert [relative(path) for path in SOURCE.rglob("*") if drawers.fullmatch(path.name)] == []


def test_the_readme_tells_how_to_run_and_test() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make run" in readme
    assert "make test" in readme


def test_every_make_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"(?:^|`)make ([a-z ]+?)(?=`|  |$| [A-Z#])", path.read_text(), re.MULTILINE)
        unknown = {word for words in named for word in words.split()} - targets
        assert not unknown, f"{relative(path)} names {unknown}"


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def programs(path: Path) -> list[tuple[str, str]]:
    """The Python programs of a document that are followed by what they print."""
    return re.findall(r"```python\n(.*?)```\s+(?:prints\s+)?```text\n(.*?)```", path.read_text(), re.DOTALL)


TOLD = [(path, program, said) for path in DOCUMENTS for program, said in programs(path)]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "program", "said"), TOLD, ids=[relative(path) for path, _, _ in TOLD])
def test_a_documents_program_prints_what_the_document_says(path: Path, program: str, said: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-c", program], tmp_path)
    assert (done.stdout, done.stderr) == (said, "")


def test_the_readme_has_a_program() -> None:
    assert [path for path, _, _ in TOLD if path == ROOT / "README.md"]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)


@functools.cache
def run_example(path: Path) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        return run([sys.executable, str(path)], Path(folder))


def marked(path: Path) -> object:
    """An example that imports Spark, or starts brokers, is run with the tests that do."""
    is_spark = "pyspark" in path.read_text()
    return pytest.param(path, marks=pytest.mark.spark if is_spark else pytest.mark.live)


LONDON = ROOT / "examples/london/main.py"  # The longest, run where what it prints is looked at.


@pytest.mark.parametrize("path", [marked(path) for path in EXAMPLES if path != LONDON], ids=relative)
def test_every_example_runs(path: Path) -> None:
    done = run_example(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.spark
def test_the_first_example_prints_what_getting_started_shows() -> None:
    shown = re.findall(r"^.* received .*$", (ROOT / "docs/guide/getting-started.md").read_text(), re.MULTILINE)
    said = run_example(ROOT / "examples/first/main.py").stdout
    assert re.findall(r"^.* received .*$", said, re.MULTILINE) == shown != []


def test_every_folder_below_examples_is_a_program() -> None:
    folders = {path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name not in NOT_OURS}
    assert folders == {path.parent for path in EXAMPLES} != set()


def test_every_link_in_a_document_leads_somewhere() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{relative(path)} links to {link}"


def test_every_decision_is_numbered_and_listed() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    listed = (ROOT / "docs/decisions/README.md").read_text()
    assert len({page.name[:4] for page in pages}) == len(pages)
    assert [page.name for page in pages if f"({page.name})" not in listed] == []


# Written apart, so that this file does not find itself.
MACHINE_PATHS = re.compile("(?<![\\w.])/(?:" + "work|" + "root|" + "home/[a-z])" + "(?:/|\\b)(?!\\.)")
SIBLINGS = "../" + "shared"


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    for path in files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found = MACHINE_PATHS.search(text)
        assert found is None, f"{relative(path)} names {text[max(0, found.start() - 30) : found.end() + 30]!r}"


def test_only_the_ci_script_looks_outside_the_project() -> None:
    naming = [relative(path) for path in files() if SIBLINGS in path.read_text(encoding="utf-8", errors="replace")]
    assert [name for name in naming if name != ".ci/run"] == []


def test_the_lock_has_a_hash_for_every_package_and_no_addresses() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    packages = re.findall(r"^([a-z0-9][a-z0-9.-]*)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    assert len(packages) == len(re.findall(r"^[^\s#]", lock, re.MULTILINE)) > 50
    assert not re.search(r"://|--(?:index|extra|find|trusted)|(?<![a-z0-9])[a-z0-9-]+\.(?:org|com|io|net)\b|@ ", lock)


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for group in project["optional-dependencies"].values() for name in group),
    ]
    names = {re.split(r"[\[<>=!~ ]", line)[0].lower() for line in wanted}
    locked = set(re.findall(r"^([a-z0-9][a-z0-9.-]*)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert names <= locked
