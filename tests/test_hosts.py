"""Inventories as Ansible reads them (the expectations were compared with ansible-inventory 2.19)."""

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import EyasError, InventoryError, UsageError
from inventory.hosts import Inventory, default_inventory, load_inventory
from inventory.ranges import MAX_HOSTS, expand

YAML = """
all:
  vars: {tier: all}
  hosts:
    lonely: {ansible_host: 10.0.0.9}
  children:
    gpu:
      vars: {tier: gpu, who: gpu}
      hosts:
        gpu[01:04]:
        gpu01: {ansible_port: 2222, ansible_user: ops, tier: host}
      children:
        hopper:
          vars: {who: hopper}
          hosts: {gpu03: , gpu04: }
    first:
      vars: {who: first, ansible_group_priority: 9}
      hosts: {gpu02: }
rack:
  hosts: rack-[a:c]
"""

INI = """
# comment
lone ansible_host=10.1.1.1 a=1 b=1.5 c=True d='x y' e="[1, 2]" i=hello#world # trailing
box1:2222
[gpu]
gpu[01:03] ansible_user=root
[2001:db8::2]:2200
2001:db8::1
; semicolon
[gpu:vars]
v = 1
x = some text # stays
[outer:children]
gpu
inner
[inner]
gpu02 q==eq
[inner:vars]
v=2
[outer:vars]
v=3
o=3
"""


def write(folder: Path, **files: str) -> Path:
    """Files by path with ``__`` for ``/`` and ``_DOT_`` for a dot; returns the first."""
    paths = [folder / name.replace("__", "/").replace("_DOT_", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths[0]


@pytest.fixture
def fleet(tmp_path: Path) -> Inventory:
    return load_inventory(write(tmp_path, hosts_DOT_yml=YAML))


def test_yaml_groups_hosts_and_precedence(fleet: Inventory) -> None:
    assert list(fleet.hosts) == [
        "lonely", "gpu01", "gpu02", "gpu03", "gpu04", "rack-a", "rack-b", "rack-c",
    ]  # fmt: skip
    assert fleet.groups["gpu"] == ("gpu01", "gpu02", "gpu03", "gpu04")
    assert fleet.groups["ungrouped"] == ("lonely",)
    first, second, third = (fleet.hosts[f"gpu0{n}"] for n in (1, 2, 3))
    assert (first.port, first.user, first.address) == (2222, "ops", "gpu01")
    assert first.vars["tier"] == "host"
    assert second.vars == {"tier": "gpu", "who": "first"}
    assert (third.vars["who"], third.groups) == ("hopper", ("gpu", "hopper"))
    assert fleet.hosts["lonely"].address == "10.0.0.9"
    assert fleet.hosts["lonely"].explicit_port is None
    assert first.explicit_port == 2222


def test_ini_values_and_groups(tmp_path: Path) -> None:
    fleet = load_inventory(write(tmp_path, hosts_DOT_ini=INI))
    assert fleet.hosts["lone"].vars == {
        "ansible_host": "10.1.1.1", "a": 1, "b": 1.5, "c": True, "d": "x y", "e": [1, 2], "i": "hello",
    }  # fmt: skip
    assert fleet.hosts["box1"].port == 2222
    assert fleet.hosts["2001:db8::2"].port == 2200
    assert fleet.groups["outer"] == ("gpu01", "gpu02", "gpu03", "2001:db8::2", "2001:db8::1")
    assert fleet.hosts["gpu01"].vars == {"ansible_user": "root", "v": 1, "x": "some text # stays", "o": 3}
    assert fleet.hosts["gpu02"].vars["v"] == 2
    assert fleet.hosts["gpu02"].vars["q"] == "=eq"


def test_variable_files_win_over_the_inventory_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        hosts="[a]\nh1\nh2 x=inline\n[a:vars]\nx=group\ny=group\n",
        group_vars__all="x: all\ny: all\n",
        group_vars__a__10_DOT_yml="z: ten\n",
        group_vars__a__20_DOT_yml="z: twenty\n",
        group_vars__a__30_DOT_txt="z: not a variable file\n",
        group_vars__a__vault_DOT_yml="$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        host_vars__h2_DOT_json='{"x": "host_vars"}',
    )
    fleet = load_inventory(path)
    assert fleet.hosts["h1"].vars == {"x": "all", "y": "all", "z": "twenty"}
    assert fleet.hosts["h2"].vars["x"] == "host_vars"
    assert [n for n in fleet.notes if "vault" in n]


def test_templates_in_connection_variables(tmp_path: Path) -> None:
    text = (
        "all:\n  vars: {net: lan, ansible_host: '{{ inventory_hostname }}.{{ net }}', other: '{{ x }}'}\n"
        "  hosts: {gpu01: {eyas_overrides: {served_model_name: '{{ inventory_hostname }}'}}}\n"
    )
    host = load_inventory(write(tmp_path, h_DOT_yml=text)).hosts["gpu01"]
    assert host.address == "gpu01.lan"
    assert host.vars["eyas_overrides"] == {"served_model_name": "gpu01"}
    assert host.vars["other"] == "{{ x }}"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yml", "all:\n  hosts: {x: }\n  host: {y: }\n", r"a.yml:3: group 'all' has unknown key 'host'"),
        ("a.yml", "all:\n  hosts:\n    - x\n", r"a.yml:\d: all.hosts is a list"),
        ("a.yml", "- x\n", "a.yml:1: the inventory is a list"),
        ("a.yml", "all:\n  hosts:\n    x:\n    x:\n", r"a.yml:4: key 'x' is given twice \(first on line 3\)"),
        ("a.yml", "a: {children: {b: {children: {a: }}}}", "would contain itself"),
        ("a.yml", "a: {hosts: {'g[1:': }}", "is not a host name"),
        ("a.yml", "a: {hosts: {'-oProxyCommand=x': }}", "is not a host name"),
        ("a.yml", "a: {hosts: {h: {ansible_port: 70000}}}", "port 70000 is not 1 to 65535"),
        ("a.yml", "a: {hosts: {h: {ansible_host: -oX}}}", "ansible_host '-oX' is not one word"),
        ("a.yml", "a: {hosts: {h: {ansible_host: '{{ nope }}'}}}", "'nope' is undefined"),
        ("a.yml", "a: {hosts: {h: {ansible_host: '{{ ansible_host }}'}}}", "refers to itself"),
        ("a.yml", "a: {hosts: {h: {ansible_user: !vault abc}}}", "ansible_user is vault-encrypted"),
        ("a.yml", "a: {vars: {ansible_group_priority: x}, hosts: {h: }}", "is not a number"),
        ("a.ini", "[g]\nh1 oops\n", "a.ini:2: expected key=value"),
        ("a.ini", "[g]\nh1 a='x\n", "a.ini:2: No closing quotation"),
        ("a.ini", "[g]\nh1\n[g:var]\na=1\n", "a.ini:3: unknown section kind 'var'"),
        ("a.ini", "[g:children]\nnope\n", "a.ini:2: group 'nope' is used but never defined"),
        ("a.ini", "[g]\nh[3:1]\n", "a.ini:2: range"),
        ("a.ini", "[g]\nh[1:99999999]\n", "more than 10000"),
        ("a.py", "#!/usr/bin/env python3\n", "dynamic inventory script"),
        ("a.yml", "a: \xff\tb", "a.yml:1: not YAML"),
    ],
)
def test_wrong_inventories_name_the_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InventoryError, match=says) as caught:
        load_inventory(path)
    assert caught.value.hint


def test_folder_and_missing_file(tmp_path: Path) -> None:
    write(tmp_path, hosts_DOT_yml="all: {}")
    with pytest.raises(InventoryError, match=r"is a folder \(hosts.yml\)"):
        load_inventory(tmp_path)
    with pytest.raises(InventoryError, match="does not exist"):
        load_inventory(tmp_path / "none.yml")


def test_default_inventory(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    assert default_inventory(cwd=here, home=home).hosts == {}
    write(home, inventory__hosts_DOT_ini="of-the-checkout")
    assert list(default_inventory(cwd=here, home=home).hosts) == ["of-the-checkout"]
    write(here, inventory__hosts_DOT_yml="g: {hosts: {box: }}")
    assert list(default_inventory(cwd=here, home=home).hosts) == ["box"]
    with pytest.raises(InventoryError):
        default_inventory("", cwd=here, home=home)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu01", "gpu01"),
        ("all", "lonely gpu01 gpu02 gpu03 gpu04 rack-a rack-b rack-c"),
        ("*", "lonely gpu01 gpu02 gpu03 gpu04 rack-a rack-b rack-c"),
        ("gpu", "gpu01 gpu02 gpu03 gpu04"),
        ("gpu[0:1]", "gpu01 gpu02"),
        ("gpu[-1]", "gpu04"),
        ("rack-[b:c]", "rack-b rack-c"),
        ("gpu:!hopper", "gpu01 gpu02"),
        ("!hopper,gpu", "gpu01 gpu02"),
        ("gpu:&hopper:!gpu04", "gpu03"),
        ("~gpu0[12]", "gpu01 gpu02"),
        ("~(gpu|rack-)a", "rack-a"),
        ("gpu0?,lonely", "gpu01 gpu02 gpu03 gpu04 lonely"),
        ("!gpu,!rack", "lonely"),
        ("elsewhere", "elsewhere"),
        ("new[1:2].lan", "new1.lan new2.lan"),
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("gpu01, gpu01 ,gpu02", "gpu01 gpu02"),
    ],
)
def test_patterns(fleet: Inventory, pattern: str, names: str) -> None:
    assert [h.name for h in fleet.select(pattern)] == names.split()


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (None, "empty"),
        ("", "empty"),
        ("  ", "empty"),
        ("gpu01,", "empty part"),
        (",", "empty part"),
        ("!", "empty part"),
        ("--help", "looks like an option"),
        ("gpu01,-x", "looks like an option"),
        ("!gpu07", "no host or group is named 'gpu07'"),
        ("gpu:&hoper", "no host or group is named 'hoper'"),
        ("gpu0[1:9]", "not in the inventory: gpu05, gpu06, gpu07, gpu08, ..."),
        ("gpux*", "nothing matches"),
        ("~[", "not a regular expression"),
        ("gpu:!gpu", "leaves no host"),
        ("gpu[9]", "outside its group"),
        ("gpu01:2222", "no host or group is named '2222'"),
        ("a b", "cannot be read"),
        ("x;reboot", "no host or group"),
        ("$(id)", "no host or group"),
    ],
)
def test_refused_patterns(fleet: Inventory, pattern: str | None, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.select(pattern)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_near_miss_is_named(fleet: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        fleet.select("gpu:!hoppper")
    assert caught.value.hint == "did you mean hopper?"


def test_an_empty_inventory_is_not_answered_with_the_same_word(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {children: {gpu: {}}}")
    for pattern in ("all", "gpu"):
        with pytest.raises(UsageError, match="has no hosts") as e:
            load_inventory(tmp_path / "hosts.yml").select(pattern)
        assert e.value.hint == "see: invoke hosts"


def test_ssh_user_in_a_plain_name() -> None:
    (host,) = Inventory().select("ops@box")
    assert (host.name, host.address, host.user) == ("box", "box", "ops")


@pytest.mark.parametrize("pattern", ["all", "*", "!x"])
def test_without_an_inventory_only_plain_names_select(pattern: str) -> None:
    with pytest.raises(UsageError):
        Inventory().select(pattern)


@given(st.integers(0, 999), st.integers(0, 60), st.integers(1, 7), st.integers(0, 4))
def test_number_ranges_count_and_pad(first: int, more: int, step: int, width: int) -> None:
    last = first + more
    padded = str(last).zfill(width)
    names = expand(f"n[{str(first).zfill(len(padded))}:{padded}:{step}]x")
    assert [int(n[1:-1]) for n in names] == list(range(first, last + 1, step))
    if len(str(first)) < len(padded):
        assert {len(n) for n in names} == {len(padded) + 2}


@given(st.text(string.printable, max_size=20))
def test_no_text_breaks_a_pattern(text: str) -> None:
    fleet = Inventory(groups={"all": (), "g": ()})
    try:
        chosen = fleet.select(text)
    except EyasError:
        return
    assert chosen
    assert not any(h.name.startswith("-") or " " in h.name for h in chosen)


@given(st.text("gh[]:0123ab,-", max_size=14))
def test_no_text_breaks_a_range(text: str) -> None:
    try:
        names: Any = expand(text)
    except InventoryError:
        return
    assert 1 <= len(names) <= MAX_HOSTS
