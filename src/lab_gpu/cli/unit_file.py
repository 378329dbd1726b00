"""The systemd unit that keeps a master running: its text and its place. Pure, so it can be shown unwritten.

Stopping or restarting the unit must never touch a task: only the main process is signalled
(`KillMode=process`), a task that runs out of memory does not take the unit down (`OOMPolicy=continue`),
tasks may have cgroups of their own (`Delegate=yes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNIT_NAME = "lab-gpu.service"
MARK = "# Written by `lab-gpu service install`; `lab-gpu service uninstall` removes it."
SYSTEM_DIR = "/etc/systemd/system"


@dataclass(frozen=True, slots=True)
class UnitOrder:
    """`command` starts the master, `reload` serves `systemctl reload`; `account` makes it a system unit."""

    command: Sequence[str]
    reload: Sequence[str]
    environment: Mapping[str, str]
    account: str | None = None
    documentation: str | None = None

    @property
    def system(self) -> bool:
        return self.account is not None


def unit_dir(system: bool, environ: Mapping[str, str], user_home: str) -> str:
    if system:
        return SYSTEM_DIR
    return f"{environ.get('XDG_CONFIG_HOME') or user_home + '/.config'}/systemd/user"


def unit_path(system: bool, environ: Mapping[str, str], user_home: str) -> str:
    return f"{unit_dir(system, environ, user_home)}/{UNIT_NAME}"


def quoted(word: str) -> str:
    """One word of a command line or assignment, as systemd reads it: `%` means itself, blanks hold."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if not plain or any(sign in plain for sign in " \t;'\"\\#") else plain


def command_line(words: Sequence[str]) -> str:
    return " ".join(quoted(word.replace("$", "$$")) for word in words)


def unit_text(order: UnitOrder) -> str:
    """The whole unit. Exit status 2 means that the start was refused: trying again would be refused again."""
    lines = [MARK, "[Unit]", "Description=Lab-GPU: one queue for the GPUs of this machine"]
    lines += [f"Documentation={order.documentation}"] if order.documentation else []
    lines += [
        "After=" + ("local-fs.target remote-fs.target network.target" if order.system else "basic.target")
    ]
    lines += ["", "[Service]", "Type=notify", "NotifyAccess=main"]
    lines += [f"User={order.account}"] if order.account else []
    lines += [f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(order.environment.items())]
    lines += [f"ExecStart={command_line(order.command)}", f"ExecReload={command_line(order.reload)}"]
    lines += ["Restart=on-failure", "RestartSec=2", "RestartPreventExitStatus=2"]
    lines += ["KillMode=process", "OOMPolicy=continue", "Delegate=yes", "TasksMax=infinity"]
    wanted_by = "multi-user.target" if order.system else "default.target"
    return "\n".join([*lines, "", "[Install]", f"WantedBy={wanted_by}", ""])


def is_ours(text: str) -> bool:
    return text.startswith(MARK)
