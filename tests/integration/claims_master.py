"""A master as far as claims go, for test_claims.py: `launches` shares GPUs with others, `crash` holds one and dies.

usage: claims_master.py launches UID DIRECTORY LOG COUNT SEED | crash UID DIRECTORY
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.ids import GpuUuid
from lab_gpu.probe.claim_files import boot_id
from lab_gpu.probe.claims import ClaimsDirectory
from lab_gpu.probe.nvml import NvmlProbe
from lab_gpu.probe.processes import read_stat

AT_ONCE = 6


def become(uid: int) -> None:
    """Whatever is read or imported late is read before: the interpreter may lie where only root can look."""
    boot_id()
    probe = NvmlProbe()
    probe.read()
    probe.close()
    if os.getuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def started(pid: int) -> int:
    stat = read_stat(pid)
    assert stat
    return stat.started


def launches(claims: ClaimsDirectory, log_path: str, count: int, seed: int) -> None:
    """What it logs it does inside what it claims: a start after the claim, an end before the claim is given up."""
    chance = random.Random(seed)
    total_mib = {gpu.uuid: gpu.total_mib for gpu in NvmlProbe().read().gpus}
    me = (os.getpid(), started(os.getpid()))
    live: list[Claim] = []
    with open(log_path, "w", encoding="ascii") as log:
        while count:
            if live and (len(live) == AT_ONCE or chance.random() < 0.45):
                ended = live.pop(chance.randrange(len(live)))
                log.write(f"{time.monotonic_ns()} {ended.gpu} {-ended.mib}\n")
                claims.publish(live)
                continue
            new = Claim(chance.choice(list(total_mib)), chance.randrange(2048, 20480), *me)

            def fits(others: Sequence[OthersClaim], new: Claim = new) -> bool:
                held = [*live, *(each.claim for each in others), new]
                return sum(claim.mib for claim in held if claim.gpu == new.gpu) <= total_mib[new.gpu]

            if claims.exchange([*live, new], fits):
                log.write(f"{time.monotonic_ns()} {new.gpu} {new.mib}\n")
                live.append(new)
                count -= 1
            else:
                log.write(f"{time.monotonic_ns()} {new.gpu} 0\n")
        for claim in live:
            log.write(f"{time.monotonic_ns()} {claim.gpu} {-claim.mib}\n")
        claims.publish([])


def crash(claims: ClaimsDirectory) -> None:
    """Starts a task that outlives it, tells its pid, and waits to be killed."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    task = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, start_new_session=True, **quiet)
    claims.publish([Claim(GpuUuid("GPU-1"), 4096, task.pid, started(task.pid))])
    print(task.pid, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    mode, uid, directory, *rest = sys.argv[1:]
    become(int(uid))
    own = ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": directory})
    if mode == "launches":
        launches(own, rest[0], int(rest[1]), int(rest[2]))
    else:
        crash(own)
