"""Settings of the command line: environment, then project file, user file, system file. The nearer wins.

Every key is known by name; a value is text that is read like the flag of its name. YAML's reader is loaded
only for files that are more than plain `key: value` lines.
"""

from __future__ import annotations

import os
import re

from lab_gpu.core.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Values = dict[str, Any]  # flat: "host", "submit.mem"

GENERAL = {
    "host": "the master: a host, host:port, URL or unix:PATH",
    "log_root": "where logs lie",
    "color": "auto, always or never",
}
COLOURS = ("auto", "always", "never")
SECTION = "submit"
PROJECT_FILE = "lab-gpu.yaml"
SYSTEM_FILE = "/etc/lab-gpu/config.yaml"
_PLAIN = r"(?:[\w./~+]|-(?=\d))(?:[\w./~@+%=,-]|:(?=\S)| (?=[\w./~@+(]))*"
_LINE = rf"(?P<indent> *)(?P<key>[\w-]+):(?: +(?P<value>{_PLAIN}))?(?: +#.*)? *"
_EMPTY = r" *(?:#.*)?"

_read: list[tuple[str, Values]] | None = None


def layers() -> list[tuple[str, Values]]:
    """(where from, what it says), the strongest first. Read once."""
    global _read
    if _read is None:
        _read = [("environment", _from_environment()), *_from_files()]
    return _read


def setting(key: str) -> str | None:
    """The value in force of a general setting."""
    for origin, values in layers():
        if values.get(key):
            return checked(key, values[key], origin)
    return None


def checked(key: str, value: Any, origin: str) -> str:
    text = str(value)
    if key == "color" and text not in COLOURS:
        raise Refused(f"cannot use color '{text}' of {origin}: it is none of auto, always, never; correct it")
    return os.path.abspath(os.path.expanduser(text)) if key == "log_root" else text


def submit_layers() -> list[tuple[str, Values]]:
    """What each place says of new tasks, by field name, the strongest place first."""
    found = []
    for origin, values in layers():
        said = {
            key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{SECTION}.")
        }
        if said:
            found.append((origin, said))
    return found


def _from_environment() -> Values:
    values: Values = {}
    for name in GENERAL:
        text = os.environ.get(f"LAB_GPU_{name.upper()}")
        if text:
            values[name] = text
    prefix = f"LAB_GPU_{SECTION.upper()}__"
    for name, text in os.environ.items():
        if name.startswith(prefix):
            key = f"{SECTION}.{name[len(prefix) :].lower()}"
            check_key(key, f"the environment's {name}")
            values[key] = text
    return values


def _from_files() -> Iterator[tuple[str, Values]]:
    for path in (project_file(), user_file(), SYSTEM_FILE):
        values = read_file(path) if path else None
        if values is None:
            continue
        if "host" in values and path not in (user_file(), SYSTEM_FILE):
            raise Refused(
                f"cannot take host from {path}: a project must not decide where your environment is sent; "
                "use `lab-gpu config set host …` or LAB_GPU_HOST"
            )
        yield str(path), values


def project_file() -> str | None:
    """lab-gpu.yaml here or further up, as far as the repository's root or the person's home."""
    home = os.path.expanduser("~")
    try:
        here = os.getcwd()
    except OSError:
        return None
    while True:
        path = os.path.join(here, PROJECT_FILE)
        if os.path.isfile(path):
            return path
        above = os.path.dirname(here)
        if above == here or here == home or os.path.exists(os.path.join(here, ".git")):
            return None
        here = above


def user_file() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "lab-gpu", "config.yaml")


def read_file(path: str) -> Values | None:
    """Flat values of a file; None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"cannot read {path}: {error.__class__.__name__}: {error}; correct or remove it"
        ) from None
    plain = _read_plain(text)
    values = _read_yaml(path, text) if plain is None else plain
    for key in values:
        check_key(key, _place(path, text, key))
    return values


def check_key(key: str, place: str) -> None:
    if key in GENERAL:
        return
    from lab_gpu.cli.task_flags import BY_NAME

    section, _, name = key.partition(".")
    if section == SECTION and name.replace("-", "_") in BY_NAME:
        return
    from lab_gpu.core.nearest import nearest

    known = [*GENERAL, *(f"{SECTION}.{field}" for field in BY_NAME)]
    close = f"{SECTION}.{key}" if f"{SECTION}.{key}" in known else nearest(key, known)
    advice = f"did you mean {close}?" if close else f"known are {', '.join(GENERAL)} and the flags of submit"
    raise Refused(f"cannot use {place}: there is no setting '{key}'; {advice}")


def _place(path: str, text: str, key: str) -> str:
    last = key.split(".")[-1]
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith(f"{last}:"):
            return f"{path}:{number}"
    return path


def _read_plain(text: str) -> Values | None:
    """`key: value` lines with one section; None where the file is more than that."""
    values: Values = {}
    section = ""
    for line in text.splitlines():
        if re.fullmatch(_EMPTY, line):
            continue
        found = re.fullmatch(_LINE, line)
        if found is None or (found["indent"] and not section) or found["value"] in ("null", "~"):
            return None
        if not found["indent"]:
            section = "" if found["value"] else found["key"]
        if found["value"]:
            values[f"{section}.{found['key']}" if found["indent"] else found["key"]] = found["value"]
        elif found["indent"]:
            return None
    return values


def _read_yaml(path: str, text: str) -> Values:
    import yaml

    try:
        document = yaml.load(text, Loader=_texts_and_nothing())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "it is not YAML"
        raise Refused(f"cannot read {path}{line}: {why}; correct it") from None
    if document in (None, ""):
        return {}
    if not isinstance(document, dict):
        raise Refused(f"cannot read {path}: it holds no settings by name; write lines like 'host: gpubox'")
    values: Values = {}
    for key, value in document.items():
        if key == SECTION and isinstance(value, dict):
            values |= {f"{SECTION}.{name}": each for name, each in value.items() if each not in ("", None)}
        elif value not in ("", None):
            values[str(key)] = value
    return values


def _texts_and_nothing() -> Any:
    """Reads every value as text, but for a null without quotes, which is nothing."""
    import yaml

    class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
        pass

    tag = "tag:yaml.org,2002:null"
    Loader.add_implicit_resolver(tag, re.compile(r"(?:~|null)?$"), ["~", "n", ""])
    Loader.add_constructor(tag, lambda *_: None)
    return Loader


def change_file(path: str, key: str, value: str | None) -> None:
    """Sets (None: takes away) one key of a file, line by line: comments and order stay."""
    try:
        with open(path, encoding="utf-8") as file:
            before = file.read()
    except FileNotFoundError:
        before = ""
    after = _changed(before, key, value)
    wanted = {**(read_file(path) or {}), key: value}
    if _result(path, after) != {name: each for name, each in wanted.items() if each is not None}:
        raise Refused(
            f"cannot change {key} in {path}: it has no lines of its own there; edit the file yourself"
        )
    _replace(path, after)


def _result(path: str, text: str) -> Values | None:
    try:
        plain = _read_plain(text)
        return _read_yaml(path, text) if plain is None else plain
    except Refused:
        return None


def _changed(text: str, key: str, value: str | None) -> str:
    section, _, name = key.rpartition(".")
    lines = text.splitlines()
    new = None if value is None else f"{'  ' if section else ''}{name}: {_quoted(value)}"
    at, inside, end = None, not section, None
    for number, line in enumerate(lines):
        found = re.match(_LINE, line)
        if found and not found["indent"]:
            inside = found["key"] == section if section else True
            end = number if inside and section else end
        if found and inside and found["key"] == name and bool(found["indent"]) == bool(section):
            at = number
    if at is not None:
        lines[at : at + 1] = [] if new is None else [new]
    elif new is not None:
        addition = [new] if not section or end is not None else [f"{section}:", new]
        place = end + 1 if end is not None else len(lines)
        lines[place:place] = addition
    return "".join(f"{line}\n" for line in lines)


def _quoted(value: str) -> str:
    if re.fullmatch(_PLAIN, value) and value not in ("null", "~"):
        return value
    from json import dumps

    return dumps(value, ensure_ascii=False)


def _replace(path: str, text: str) -> None:
    trial = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(trial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(trial, path)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}; check its folder") from None
