"""What a broker does not start with: an old key manager's state, a clock that stepped back, a type it cannot read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.errors import Denied
from tidings.net import DevNetwork, lay_out, read_broker
from tidings.net.broker.key_managers import KeyManagers
from tidings.net.clock import now_ms
from tidings.net.type_files import read_type
from tidings.security import Mode, Persist
from tidings.store import Registry

pytestmark = pytest.mark.live

SHIFTED = Path(__file__).with_name("shifted.py")


def refused(broker: Path, wrong_by_s: float = 0.0) -> str:
    """What `tidings broker run` says, which must end by itself with exit code 3 and without having listened."""
    clock = broker.parent / "clock-is-wrong-by"
    clock.write_text(str(wrong_by_s))
    command = [sys.executable, str(SHIFTED), str(clock), "broker", "run", "--config", str(broker), "--log", "error"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    return done.stderr


def run_manager(broker: Path) -> None:
    """Has the broker's key manager change something and keep it, as a broker would."""
    config = read_broker(broker)
    config.data.mkdir(exist_ok=True)
    managers, signed = KeyManagers(config), read_type(config.types[0]).signed
    assert signed is not None
    (manager,) = managers.hosted([signed])
    (kept,) = manager.revoke(["nobody's"], now_ms())
    assert isinstance(kept, Persist)
    managers.keep(signed.type_id, kept.generation)
    managers.close()


def test_a_broker_with_an_old_snapshot_a_clock_gone_back_or_a_broken_type_does_not_start(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "network", DevNetwork(first_port=0, brokers={"police": 1}, mode=Mode.ATTRIBUTE))
    broker = laid.brokers["police-1"]
    run_manager(broker)
    registry, snapshot = read_broker(broker).data / "registry.db", tmp_path / "snapshot.db"
    shutil.copy(registry, snapshot)
    run_manager(broker)
    newest = registry.read_bytes()

    registry.write_bytes(snapshot.read_bytes())
    said = refused(broker)
    assert "Denied: state: an old snapshot, of generation 1; 2 was reached before (Numberplate@1)" in said
    registry.unlink()
    with pytest.raises(Denied, match="state: the registry has none; generation 2 was reached before"):
        run_manager(broker)
    registry.write_bytes(newest)
    assert "Denied: clock: it shows " in refused(broker, wrong_by_s=-7200.0)
    (laid.folder / "Numberplate.type").write_bytes((laid.folder / "Numberplate.type").read_bytes()[:-1])
    assert "Denied: type: expected a signed event type" in refused(broker)


def test_a_manager_and_a_job_on_spark_never_give_the_same_sender_id(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "network", DevNetwork(first_port=0, brokers={"police": 1}, mode=Mode.ATTRIBUTE))
    config = read_broker(laid.brokers["police-1"])
    config.data.mkdir(exist_ok=True)
    managers, signed = KeyManagers(config), read_type(config.types[0]).signed
    assert signed is not None
    (manager,) = managers.hosted([signed])
    with Registry.open(str(config.data / "registry.db"), now_ms=now_ms()) as registry:
        given = [manager.new_sender_id(), *registry.keys.new_sender_ids(signed.type_id, 2, by="job", now_ms=now_ms())]
    assert [*given, manager.new_sender_id()] == [1, 2, 3, 4]
    managers.close()
