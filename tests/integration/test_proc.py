"""What /proc tells, who is told of a coming stop, and who is found when nobody else remembers him."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_gpu.core.attempts import Armed
from lab_gpu.core.model import ProcessName
from lab_gpu.engines import cgroup, proc, subreaper
from lab_gpu.engines.census import Census
from lab_gpu.engines.local import LocalEngine
from lab_gpu.testing.attempts import AttemptScene, wait_for


@pytest.fixture
def scene() -> Iterator[AttemptScene]:
    scene = AttemptScene(LocalEngine())
    yield scene
    scene.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], env={"LAB_GPU_UNI_ID": "7-1-x", "B": "LAB_GPU_UNI_ID=no"})
    wait_for(lambda: proc.command_line(child.pid)[:1] == ("sleep",))
    yield child
    child.kill()
    child.wait()


# -- reading


def test_a_process(sleeper: subprocess.Popen[bytes]):
    stat = proc.stat(sleeper.pid)
    assert stat is not None
    assert (stat.parent, stat.session, stat.dead) == (os.getpid(), os.getsid(0), False)
    assert proc.environment_value(sleeper.pid, "LAB_GPU_UNI_ID") == "7-1-x"
    assert proc.environment_value(sleeper.pid, "UNI_ID") is None
    assert proc.command_line(sleeper.pid) == ("sleep", "60")
    assert os.path.basename(proc.program(sleeper.pid) or "") in ("sleep", "coreutils")


def test_a_name_with_brackets_and_blanks(tmp_path: Path):
    program = tmp_path / "a ) R 1 b"
    program.symlink_to(sys.executable)
    child = subprocess.Popen([str(program), "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stat = proc.stat(child.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
    finally:
        child.communicate(b"\n")


def test_one_that_is_gone_is_no_error():
    child = subprocess.Popen(["true"])
    name = wait_for(lambda: proc.stat(child.pid))
    child.wait()
    assert proc.stat(child.pid) is None
    assert not proc.alive(name.name)
    assert proc.caught_mask(child.pid) == 0
    assert proc.command_line(child.pid) == ()
    assert proc.program(child.pid) is None
    assert proc.environment_value(child.pid, "PATH") is None


def test_a_zombie_is_not_alive():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = proc.stat(child.pid)
    assert stat is not None
    assert stat.dead
    assert not proc.alive(stat.name)
    child.wait()


def test_the_boot_has_a_name():
    assert len(proc.boot_id()) == 36


# -- who is told

CATCHING = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: open(f'told.{os.getpid()}', 'w').close())\n"
)


def python(scene: AttemptScene, name: str, program: str) -> str:
    """The command that runs it."""
    Path(scene.home, name).write_text(program)
    return f"'{sys.executable}' {scene.home}/{name}"


def catchers(scene: AttemptScene, armed: Armed, ready: int) -> tuple[ProcessName, ...]:
    """Asked once that many files `ready.*` are there."""
    wait_for(lambda: len(list(Path(scene.home).glob("ready.*"))) == ready)
    return scene.engine.catchers(scene.tree(armed), signal.SIGUSR1)


READY = "open(f'ready.{os.getpid()}', 'w').close()\n"


def test_a_program_that_catches_is_told_and_its_shell_is_not(scene: AttemptScene):
    armed = scene.start(python(scene, "a.py", CATCHING + READY + "time.sleep(60)\n") + "; true")
    (told,) = catchers(scene, armed, 1)
    assert scene.engine.send(told, signal.SIGUSR1)
    wait_for(Path(scene.home, f"told.{told.pid}").exists)
    assert scene.engine.alive(told)


def test_forked_workers_of_one_that_is_told_are_not(scene: AttemptScene):
    """As data loaders are: forked, some with handlers of their own on top."""
    program = (
        CATCHING + "for number in range(3):\n"
        "    if os.fork() == 0:\n"
        "        if number: signal.signal(signal.SIGTERM, lambda *_: None)\n"
        f"        {READY}"
        "        time.sleep(60)\n"
        "        os._exit(0)\n" + READY + "time.sleep(60)\n"
    )
    armed = scene.start(python(scene, "a.py", program) + "; true")
    (told,) = catchers(scene, armed, 4)
    begun = scene.engine.begun(armed.order.directory)
    stat = proc.stat_of(told)
    assert begun is not None
    assert stat is not None
    assert stat.parent == begun.process.pid


def test_programs_of_their_own_are_told_each(scene: AttemptScene):
    """As ranks are: started by a launcher that does not catch."""
    rank = shlex.split(python(scene, "rank.py", CATCHING + READY + "time.sleep(60)\n"))
    program = f"import subprocess\nfor rank in [subprocess.Popen({rank!r}) for _ in range(3)]: rank.wait()\n"
    armed = scene.start(python(scene, "launcher.py", program))
    assert len(catchers(scene, armed, 3)) == 3


def test_a_program_started_by_one_that_catches_is_told_too(scene: AttemptScene):
    inner = shlex.split(python(scene, "inner.py", CATCHING + READY + "time.sleep(60)\n"))
    program = CATCHING + f"import subprocess\n{READY}subprocess.run({inner!r})\n"
    armed = scene.start(python(scene, "outer.py", program))
    assert len(catchers(scene, armed, 2)) == 2


def test_a_shell_that_set_a_trap_is_told(scene: AttemptScene):
    armed = scene.start("trap 'echo saved; exit 7' USR1\ntouch ready.1\nsleep 60 &\nwait")
    (told,) = catchers(scene, armed, 1)
    scene.engine.send(told, signal.SIGUSR1)
    assert scene.end(armed) == 7
    assert scene.log(armed) == "saved\n"


def test_a_shell_that_only_cleans_up_is_not(scene: AttemptScene):
    """An EXIT trap makes bash catch every deadly signal; told, it would end and leave its program behind."""
    armed = scene.start("trap 'echo bye' EXIT\ntouch ready.1\nsleep 60\ntrue")
    assert catchers(scene, armed, 1) == ()


def test_one_with_both_traps_is_told(scene: AttemptScene):
    armed = scene.start("trap 'echo bye' EXIT\ntrap 'exit 7' USR1\ntouch ready.1\nsleep 60 &\nwait")
    (told,) = catchers(scene, armed, 1)
    scene.engine.send(told, signal.SIGUSR1)
    assert scene.end(armed) == 7


def test_run_sh_is_never_told(scene: AttemptScene):
    armed = scene.start("touch ready.1; sleep 60")
    wait_for(Path(scene.home, "ready.1").exists)
    assert proc.catches(armed.process.pid, signal.SIGUSR1)
    assert scene.engine.catchers([armed.process], signal.SIGUSR1) == ()


def test_processes_that_vanish_meanwhile_are_no_matter(scene: AttemptScene):
    armed = scene.start("touch ready.1; sleep 60")
    wait_for(Path(scene.home, "ready.1").exists)
    tree = scene.tree(armed)
    scene.engine.kill(armed.order.uni_id, armed.process, armed.process.pid)
    wait_for(lambda: not any(scene.engine.alive(process) for process in tree))
    assert scene.engine.catchers(tree, signal.SIGUSR1) == ()


# -- the census


def test_who_left_the_session_and_its_name_is_still_known(scene: AttemptScene):
    """Seen while its parent lived; then it cleaned its environment and became nobody's child."""
    program = (
        "import os, sys, time\n"
        "if os.fork(): \n    while not os.path.exists('go'): time.sleep(0.01)\n    os._exit(0)\n"
        "os.setsid()\n"
        f"os.execve({sys.executable!r}, ['python', '-c', "
        "\"import os, time; open('ready.1', 'w').close(); time.sleep(60)\"], {})\n"
    )
    armed = scene.start(python(scene, "daemon.py", program))
    wait_for(Path(scene.home, "ready.1").exists)
    before = set(scene.tree(armed))
    Path(scene.home, "go").touch()
    assert scene.end(armed) == 0
    (left,) = wait_for(lambda: scene.tree(armed))
    assert left in before


def test_a_strangers_session_with_our_number_is_not_ours(sleeper: subprocess.Popen[bytes]):
    """The leader of our session has ended and its pid was given to somebody else."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        name = wait_for(lambda: proc.stat(stranger.pid)).name
        earlier = ProcessName(name.pid, name.started - 1)
        assert Census().members("none-such", name.pid, earlier) == ()
        assert [stat.name for stat in Census().members("none-such", name.pid, name)] == [name]
    finally:
        stranger.kill()
        stranger.wait()


def test_what_is_older_than_the_runner_is_never_its_own(sleeper: subprocess.Popen[bytes]):
    name = wait_for(lambda: proc.stat(sleeper.pid)).name
    assert [stat.name for stat in Census().members("7-1-x", None, None)] == [name]
    younger = ProcessName(os.getpid(), name.started + 1)
    assert Census().members("7-1-x", None, younger) == ()


def test_the_census_follows_what_comes_and_goes():
    census = Census()
    for _ in range(3):
        child = subprocess.Popen(["sleep", "60"], env={"LAB_GPU_UNI_ID": "8-1-x"})
        found = wait_for(lambda: census.members("8-1-x", None, None))
        assert [stat.name.pid for stat in found] == [child.pid]
        child.kill()
        child.wait()
        assert census.members("8-1-x", None, None) == ()


# -- orphans


def in_a_process_of_its_own(program: str) -> None:
    source = os.path.join(os.path.dirname(__file__), "../../src")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1])\n{program}", source]
    subprocess.run(command, check=True, timeout=60)


def test_orphans_come_to_us():
    """A daemon with a clean environment, in a session of its own, whose parents are gone."""
    if subreaper.children() is None:
        assert not subreaper.become_subreaper()
        return
    in_a_process_of_its_own(
        "import os, time\n"
        "from lab_gpu.engines.local import LocalEngine\n"
        "from lab_gpu.testing.attempts import AttemptScene, wait_for\n"
        "scene = AttemptScene(LocalEngine())\n"
        "armed = scene.start('setsid env -i sleep 60 & exit 0')\n"
        "scene.end(armed)\n"
        "(stray,) = wait_for(lambda: scene.engine.strays([]))\n"
        "assert scene.engine.strays([stray.pid]) == ()\n"
        "wait_for(lambda: open(f'/proc/{stray.pid}/cmdline').read().startswith('sleep'))\n"
        "scene.engine.send(stray, 9)\n"
        "wait_for(lambda: not scene.engine.alive(stray))\n"
        "wait_for(lambda: not os.path.exists(f'/proc/{stray.pid}'))\n"
        "assert scene.engine.strays([]) == ()\n"
        "scene.close()\n"
    )


def test_orphans_that_ended_are_reaped():
    if subreaper.children() is None:
        return
    in_a_process_of_its_own(
        "import os\n"
        "from lab_gpu.engines.local import LocalEngine\n"
        "from lab_gpu.testing.attempts import AttemptScene, wait_for\n"
        "from lab_gpu.engines import subreaper\n"
        "scene = AttemptScene(LocalEngine())\n"
        "armed = scene.start('(sleep 0.2; true) & exit 0')\n"
        "scene.end(armed)\n"
        "wait_for(lambda: subreaper.children())\n"
        "wait_for(lambda: scene.engine.strays([]) == () and not subreaper.children())\n"
        "scene.close()\n"
    )


# -- cgroups, where we have them


def test_a_cgroup_holds_and_ends_what_cleaned_its_name():
    cgroups = cgroup.find()
    if cgroups is None:
        assert LocalEngine()._cgroups is None
        return
    scene = AttemptScene(LocalEngine())
    try:
        armed = scene.start("setsid env -i sleep 60 & touch ready.1; exit 0")
        assert scene.end(armed) == 0
        (left,) = wait_for(lambda: scene.tree(armed))
        assert os.path.isdir(cgroups.path(armed.order.uni_id))
        scene.engine.kill(armed.order.uni_id, armed.process, armed.process.pid)
        wait_for(lambda: not scene.engine.alive(left))
        assert scene.run("true")[0] == 0
        scene.run("true")
        wait_for(lambda: not _exists_after_removal(cgroups, armed))
    finally:
        scene.close()


def _exists_after_removal(cgroups: cgroup.Cgroups, armed: Armed) -> bool:
    cgroups.remove(armed.order.uni_id)
    return os.path.exists(cgroups.path(armed.order.uni_id))


def test_a_folder_without_cgroup_kill_is_none(tmp_path: Path):
    assert not cgroup._works(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_old_empty_cgroups_are_swept(tmp_path: Path):
    old, young, strange = (tmp_path / name for name in ("lab-gpu-1-1-x", "lab-gpu-2-1-x", "else"))
    for folder in (old, young, strange):
        folder.mkdir()
    for folder in (old, strange):
        os.utime(folder, (time.time() - 3600,) * 2)
    cgroup.Cgroups(str(tmp_path)).sweep()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["else", "lab-gpu-2-1-x"]
