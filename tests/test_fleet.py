"""Many hosts at once: bounded, in order, and a machine that is too small for them says so first."""

import resource
import threading

import pytest

from inventory.errors import UsageError
from inventory.model import Host
from provision.fleet import each_host, room_for

HOSTS = [Host(name=f"gpu{n:02}", address=f"10.0.0.{n}") for n in range(1, 31)]


def test_never_more_than_forks_at_once_and_in_order() -> None:
    most, now, lock = [0], [0], threading.Lock()
    full = threading.Barrier(3)

    def work(host: Host) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        full.wait(10)  # three run side by side, or this never ends
        with lock:
            now[0] -= 1
        return host.name

    assert each_host(HOSTS, work, forks=3) == [h.name for h in HOSTS]
    assert most == [3]


@pytest.mark.parametrize("forks", [0, -1, 501, 10**9])
def test_a_senseless_number_of_forks_is_refused(forks: int) -> None:
    with pytest.raises(UsageError, match="--forks"):
        each_host(HOSTS, lambda h: h.name, forks=forks)


def test_limit_of_open_files_is_raised_or_the_run_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, made = (1024, 4096), []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: made.append(new))
    room_for(100)
    assert made == []
    room_for(2000)
    assert made == [(2128, 4096)]
    with pytest.raises(UsageError, match="10000 hosts need 10128 open files"):
        room_for(10_000)
