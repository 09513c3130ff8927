"""Several commands at the same time in one organisation's folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidings.errors import SetupError
from tidings.net import Organisation, OrganisationSettings, prepare_participant
from tidings.net.enrolment.folder_lock import FolderLock


def test_what_commands_add_at_the_same_time_is_all_there(tmp_path: Path) -> None:
    police, _ = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
    names = [f"org-{number}" for number in range(8)]
    for name in names:
        other, _ = Organisation.create(tmp_path / name, OrganisationSettings(name))
        (tmp_path / f"{name}.org").write_bytes(other.sign(other.card()))
    together = threading.Barrier(len(names))

    def trust(name: str) -> None:
        org = Organisation(police.folder)  # Each as a command of its own would.
        together.wait()
        org.trust(tmp_path / f"{name}.org")

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(trust, names))
    assert police.trusts() == names
    assert sorted(police.cards()) == names


def test_while_one_changes_the_folder_no_other_does(tmp_path: Path) -> None:
    org, _ = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
    request = prepare_participant(org.folder / "police-1", "police", "police-1", "broker", "127.0.0.1:7401")
    org.lock = FolderLock(org.folder, wait_s_max=0.0)
    changes: list[Callable[[], object]] = [
        org.rotate,
        org.cancel_rotation,
        org.finish_rotation,
        org.retire,
        org.refresh,
        org.renew_certificates,
        lambda: org.approve(request),
        lambda: org.trust(tmp_path / "x.org"),
        lambda: org.distrust("x"),
        lambda: org.remove("police-1", "broker"),
    ]
    with FolderLock(org.folder).held():
        for change in changes:
            with pytest.raises(SetupError, match="another command has been changing"):
                change()
    org.rotate()


def test_who_is_created_twice_at_the_same_time_has_one_key(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def create(_: int) -> tuple[bytes, bytes]:
        together.wait()
        org, _new = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
        request = prepare_participant(org.folder / "police-1", "police", "police-1", "broker", "127.0.0.1:7401")
        org.install_here(org.approve(request))
        return org.authority.public_key, request.key

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1
    assert [path.name for path in (tmp_path / "police").rglob(".*")] == [".lock"], "nothing is left over"


def test_a_command_that_waits_too_long_says_for_whom(tmp_path: Path) -> None:
    mine = FolderLock(tmp_path)
    with mine.held(), mine.held(), pytest.raises(SetupError, match=r"fuser .*\.lock"), FolderLock(tmp_path, 0.0).held():
        pass
    with FolderLock(tmp_path, 0.0).held():
        pass
