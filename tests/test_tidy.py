"""The repository itself: packages are small and say their purpose, documents are true, examples run."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
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
            if path.suffix in (suffixes or TEXT) and name != ".git":  # Which a worktree has as a file.
                yield path


SOURCES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted(init.parent.name for init in SOURCE.glob("*/__init__.py"))
DOCUMENTS = sorted(files(".md"))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_its_purpose(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, f"{relative(path)} has no docstring"
    assert len(said.split()) >= 4, f"{relative(path)}: {said!r} says too little"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_lists_its_public_names(package: str) -> None:
    names = [target.id for target in assignments(SOURCE / package / "__init__.py") if isinstance(target, ast.Name)]
    assert "__all__" in names


@pytest.mark.parametrize("init", [path for path in SOURCES if path.name == "__init__.py"], ids=relative)
def test_a_package_lists_its_modules(init: Path) -> None:
    """As its documentation says, in reading order; the packages themselves are in ARCHITECTURE.md."""
    said = ast.get_docstring(ast.parse(init.read_text())) if init.parent != SOURCE else architecture()
    inside = [path.stem for path in SOURCES if path.parent == init.parent]
    inside += [path.parent.name for path in SOURCES if path.name == "__init__.py" and path.parent.parent == init.parent]
    names = [name for name in inside if name not in ("__init__", "__main__")]
    assert [name for name in names if not re.search(rf"\b{name}\b", said or "")] == []


def architecture() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text()


def assignments(path: Path) -> Iterator[ast.expr]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            yield from node.targets
        if isinstance(node, ast.AnnAssign):
            yield node.target


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_other_packages_are_imported_by_their_public_names(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0]
    for module in imported_modules(path):
        package, _, inside = module.removeprefix("tidings.").partition(".")
        if package in PACKAGES and package != own:
            assert not inside, f"{relative(path)} imports {module}; take it from tidings.{package}"


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tidings."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidings."):
            yield str(node.module)


MODULES_MAX = 15  # In one folder: what fits on half a screen. More is a sub-package.


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert {relative(folder): count for folder, count in counts.items() if count > MODULES_MAX} == {}


SHARED_NAMES = {
    "Heartbeat": "a message of Pastry and one of Spanhop, each in its protocol's own union",
    "Hello": "the first message of three handshakes: a connection's, immune's and the random graph's",
    "Ping": "a message of four protocols, each in its own union",
    "Pong": "the answer to each of those",
}
"""Public class names that several modules define, and why that is no mistake."""


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield path, node


def test_a_public_class_name_means_one_thing() -> None:
    names = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert {name for name, count in names.items() if count > 1} == set(SHARED_NAMES)
    assert len(SHARED_NAMES) <= 15


PARAMETERS_MAX = 8  # More are a frozen data class of options.


def test_no_constructor_takes_more_parameters_than_a_caller_remembers() -> None:
    assert {
        f"{relative(path)} {node.name}": count
        for path, node in classes()
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        if (count := len(method.args.args) - 1 + len(method.args.kwonlyargs)) > PARAMETERS_MAX
    } == {}


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
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text()):
            if "://" not in link:
                target = path.parent / link if link else path
                assert target.exists(), f"{relative(path)} links to {link}"
                assert not anchor or anchor in anchors(target), f"{relative(path)} links to {link}#{anchor}"


def anchors(document: Path) -> set[str]:
    """Its headings, as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINE_MAX = 120
WIDE_TABLES = {"docs/reference/cesql.md", "docs/benchmarks/live.md", "docs/benchmarks/matching.md"}
"""Their rows are names that a test reads, or are written by a program."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_no_line_of_a_document_is_longer_than_a_reader_likes(path: Path) -> None:
    without_code = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in without_code.splitlines() if relative(path) not in WIDE_TABLES or line[:1] != "|"]
    assert [line for line in lines if len(line) > LINE_MAX] == []


# The paper, then the law as that paper's page defines it: SPANHOP-INV-3, IRBR-P7.
LAW = re.compile(r"\b(?:SPANHOP|IRBR|CBDLO|IMMUNE|SECURE)-(?:[A-Z]+-)?[A-Z]*\d+\b")


def test_every_law_that_is_cited_is_defined_on_its_papers_page() -> None:
    for path in [*files(".py"), *DOCUMENTS]:
        for law in set(LAW.findall(path.read_text())):
            page = ROOT / "docs/papers" / f"{law.split('-')[0].lower()}.md"
            is_defined = re.search(rf"^(?:- \*\*{law}\*\*|\| {law} \|)", page.read_text(), re.MULTILINE)
            assert is_defined, f"{relative(path)} cites {law}, which {relative(page)} does not define"


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
