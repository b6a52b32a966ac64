"""A host that takes no connection: why, and the line to try by hand."""

import socket

import pytest

from inventory.errors import HostUnreachable
from inventory.model import Host
from provision.ssh import SshOptions, connect


@pytest.mark.parametrize(("user", "login"), [(None, "127.0.0.1"), ("op", "op@127.0.0.1")])
def test_a_refused_connection_says_so_and_names_port_and_user(user: str | None, login: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's
        port = taken.getsockname()[1]
        with pytest.raises(HostUnreachable) as e:
            connect(Host(name="gpu01", address="127.0.0.1", port=port, user=user), SshOptions())
    assert e.value.message == f"no SSH connection to 127.0.0.1:{port}: Connection refused"
    assert e.value.hint == f"ssh -p {port} {login}"
