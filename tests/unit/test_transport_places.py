"""Where a master is looked for, and which token goes there."""

import json
import os
import tempfile
from collections.abc import Iterator

import pytest

from lab_gpu.client.whereabouts import (
    Place,
    is_outdated,
    own_home,
    own_socket,
    place_of,
    saved_token_path,
    token_for,
)
from lab_gpu.core.errors import Refused
from lab_gpu.core.places import runtime_dir


@pytest.fixture
def home() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="lg-", dir="/tmp") as path:
        yield path


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("lab1", "http://lab1:1895"),
        ("lab1:2000", "http://lab1:2000"),
        ("http://lab1", "http://lab1:1895"),
        ("http://lab1:80/queue/", "http://lab1:80/queue"),
        ("127.0.0.1:1900", "http://127.0.0.1:1900"),
        ("[::1]:1900", "http://[::1]:1900"),
        ("fe80::2", "http://[fe80::2]:1895"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_the_forms_of_an_address(named: str, address: str) -> None:
    assert str(place_of(named)) == address


@pytest.mark.parametrize(
    "named", ["localhost", "127.0.0.1", "127.0.1.1", "[::1]", "::1", "http://localhost/"]
)
def test_loopback_without_a_port_is_the_own_socket(named: str) -> None:
    assert place_of(named) is None


@pytest.mark.parametrize("named", ["https://lab1", "lab1:http", "lab1:99999", "http://", ":1895", "lab1:٣"])
def test_what_is_no_address_is_refused_in_a_sentence(named: str) -> None:
    with pytest.raises(Refused, match=r"cannot .*: .*"):
        place_of(named)


def test_the_home_is_the_one_named_or_this_hosts() -> None:
    assert own_home({"LAB_GPU_HOME": "/x/y/"}) == "/x/y"
    assert own_home({}).endswith(f"/.lab-gpu/{os.uname().nodename}")


def test_the_masters_note_says_where_its_socket_is(home: str) -> None:
    assert own_socket(home) == f"{home}/lab-gpu.sock"
    with open(f"{home}/socket", "w", encoding="utf-8") as note:
        note.write("/somewhere/else.sock\n")
    assert own_socket(home) == "/somewhere/else.sock"


def test_a_folder_of_sockets_that_others_could_write_is_not_trusted(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"{home}/run"
    os.mkdir(folder, 0o777)
    os.chmod(folder, 0o777)
    monkeypatch.setattr("lab_gpu.core.places.runtime_dir", lambda uid: folder)
    with open(f"{home}/socket", "w", encoding="utf-8") as note:
        note.write(f"{folder}/1.sock")
    with pytest.raises(Refused, match="cannot trust"):
        own_socket(home)
    os.chmod(folder, 0o700)
    assert own_socket(home) == f"{folder}/1.sock"
    assert runtime_dir(7) == "/tmp/lab-gpu-7"


def write_home(home: str, **note: object) -> dict[str, str]:
    with open(f"{home}/master.json", "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), "url": "http://127.0.0.1:1900", **note}, file)
    with open(f"{home}/token", "w", encoding="utf-8") as file:
        file.write("of-home")
    return {"LAB_GPU_HOME": home, "XDG_CONFIG_HOME": f"{home}/config"}


def test_the_own_token_goes_only_to_the_own_masters_port(home: str) -> None:
    environ = write_home(home)
    assert token_for(Place(host="127.0.0.1", port=1900), environ) == "of-home"
    assert token_for(Place(host="localhost", port=1900), environ) == "of-home"
    assert token_for(Place(host="127.0.0.1", port=1901), environ) is None
    assert token_for(Place(host="lab1", port=1900), environ) is None
    write_home(home, pid=2**22 + 1)
    assert token_for(Place(host="127.0.0.1", port=1900), environ) is None


def test_tokens_in_order_given_environment_home_saved(home: str) -> None:
    environ, place = write_home(home), Place(host="lab1", port=1895)
    path = saved_token_path(place, environ)
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write("saved\n")
    os.chmod(path, 0o600)
    assert token_for(place, environ) == "saved"
    assert token_for(place, {**environ, "LAB_GPU_TOKEN": "exported"}) == "exported"
    assert token_for(place, {**environ, "LAB_GPU_TOKEN": "exported"}, "given") == "given"
    assert token_for(Place(path="/x.sock"), environ, "given") is None


def test_a_saved_token_that_others_can_read_is_refused(home: str) -> None:
    environ, place = write_home(home), Place(host="lab1", port=1895)
    path = saved_token_path(place, environ)
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write("saved\n")
    os.chmod(path, 0o644)
    with pytest.raises(Refused, match="chmod 600"):
        token_for(place, environ)


@pytest.mark.parametrize(
    ("note", "outdated"),
    [
        ({"version": "0.0.9", "autostarted": True}, True),
        ({"version": "0.0.9", "autostarted": False}, False),
        ({"version": "999.0", "autostarted": True}, False),
        ({"version": "0.0.9", "autostarted": True, "pid": 2**22 + 1}, False),
    ],
)
def test_only_a_living_older_autostarted_master_is_outdated(
    home: str, note: dict[str, object], outdated: bool
) -> None:
    write_home(home, **note)
    assert is_outdated(home) is outdated


def test_no_note_or_a_broken_one_is_no_master(home: str) -> None:
    assert not is_outdated(home)
    for content in ("", "[]", "{"):
        with open(f"{home}/master.json", "w", encoding="utf-8") as file:
            file.write(content)
        assert not is_outdated(home)
