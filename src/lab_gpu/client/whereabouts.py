"""Where this user's master is, and with which token it is asked. It opens no connection."""

from __future__ import annotations

import os

from lab_gpu.core import places
from lab_gpu.core.errors import Refused
from lab_gpu.core.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Place:
    """An address: the path of a Unix socket, or a host and port. `own` marks this user's own master."""

    __slots__ = ("host", "own", "path", "port", "prefix")

    def __init__(
        self, path: str | None = None, host: str = "", port: int = 0, prefix: str = "", own: bool = False
    ) -> None:
        self.path = path
        self.host = host
        self.port = port
        self.prefix = prefix
        self.own = own

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"http://{self.authority}{self.prefix}"


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "ip6-localhost") or host.startswith("127.")


def own_home(environ: Mapping[str, str]) -> str:
    home = places.home_dir(environ, os.uname().nodename, os.path.expanduser("~"))
    return os.path.abspath(home)


def own_socket(home: str) -> str:
    """Where the master of this home listens; its note wins, because only the master knows the file system."""
    path = _first_line(places.socket_note_path(home)) or places.socket_path(home, os.getuid())
    folder = os.path.dirname(path)
    if folder == places.runtime_dir(os.getuid()):
        _check_owner(folder)
    return path


def _check_owner(folder: str) -> None:
    """Anybody may make a folder in /tmp: one that is not ours could hold somebody else's idea of a master."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Refused(
            f"cannot trust {folder}: it is not yours alone; remove it, or name another home in LAB_GPU_HOME"
        )


def place_of(host: str) -> Place | None:
    """What `--host` or LAB_GPU_HOST names. None: this user's own master (loopback without a port)."""
    text = host.strip()
    if text.startswith("unix:"):
        return Place(path=os.path.abspath(text[5:].removeprefix("//")))
    if text.startswith("https://"):
        raise Refused(
            f"cannot reach {text}: masters do not speak TLS; name it as http://, or through an ssh tunnel"
        )
    rest, _, prefix = text.removeprefix("http://").partition("/")
    name, port = _split_port(rest, text)
    if not name:
        raise Refused(f"cannot find a master at {text!r}: no host in it; write host, host:port or unix:PATH")
    if port is None and is_loopback(name):
        return None
    return Place(
        host=name, port=port or places.DEFAULT_PORT, prefix=f"/{prefix.rstrip('/')}" if prefix else ""
    )


def _split_port(rest: str, whole: str) -> tuple[str, int | None]:
    if rest.startswith("["):
        name, _, tail = rest[1:].partition("]")
        port_text = tail.removeprefix(":")
    elif rest.count(":") > 1:
        name, port_text = rest, ""
    else:
        name, _, port_text = rest.partition(":")
    if not port_text:
        return name, None
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise Refused(
            f"cannot find a master at {whole!r}: {port_text!r} is no port; write a number from 1 to 65535"
        )
    return name, int(port_text)


def token_for(place: Place, environ: Mapping[str, str], given: str | None = None) -> str | None:
    """On a Unix socket the kernel says who asks, so no token is sent there."""
    if place.path is not None:
        return None
    return given or environ.get("LAB_GPU_TOKEN") or _own_token(place, environ) or _saved_token(place, environ)


def _own_token(place: Place, environ: Mapping[str, str]) -> str | None:
    """Our own token goes to loopback only while our own master holds that port: others may not collect it."""
    if not place.loopback:
        return None
    home = own_home(environ)
    note = running_note(home)
    if note is None or not is_alive(note.get("pid")):
        return None
    url = str(note.get("url") or "").rstrip("/")
    return _first_line(places.token_path(home)) if url.endswith(f":{place.port}") else None


def saved_token_path(place: Place, environ: Mapping[str, str]) -> str:
    config = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return f"{config}/lab-gpu/tokens/{place.authority}"


def _saved_token(place: Place, environ: Mapping[str, str]) -> str | None:
    path = saved_token_path(place, environ)
    try:
        if os.stat(path).st_mode & 0o077:
            raise Refused(f"cannot use the token in {path}: others can read it; run `chmod 600 {path}`")
    except OSError:
        return None
    return _first_line(path)


def running_note(home: str) -> dict[str, Any] | None:
    """What the last master of this home said of itself: it may be gone."""
    try:
        with open(places.state_path(home), "rb") as file:
            content = file.read()
    except OSError:
        return None
    from json import loads

    try:
        note = loads(content)
    except ValueError:
        return None
    return note if isinstance(note, dict) else None


def is_alive(pid: object) -> bool:
    """Whether the process is there and has not ended, its remains waiting to be collected."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        return False


def is_outdated(home: str) -> bool:
    """Whether the master of this home was started by itself and is older than this program."""
    note = running_note(home)
    if note is None or not note.get("autostarted") or not is_alive(note.get("pid")):
        return False
    return _numbers(str(note.get("version"))) < _numbers(VERSION)


def _numbers(version: str) -> tuple[int, ...]:
    """0.10.2 comes after 0.9; what is no number ends the comparison."""
    numbers = []
    for word in version.split("."):
        if not word.isdigit():
            break
        numbers.append(int(word))
    return tuple(numbers)


def _first_line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
