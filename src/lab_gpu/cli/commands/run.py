"""`lab-gpu run`: submit, follow the log, end with the task's exit code. Ctrl-C detaches, twice cancels."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from lab_gpu.cli import frame, submission, waiting
from lab_gpu.cli.task_flags import add_task_flags
from lab_gpu.core.errors import NotFound

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

SUMMARY = "submit, follow the log, end with the task's exit code"
EXAMPLES = (
    'lab-gpu run --mem 10G "python train.py"',
    "lab-gpu run --gpus 2 -- torchrun --nproc-per-node 2 train.py",
    "lab-gpu run -- nvidia-smi                # Ctrl-C detaches, twice cancels",
)
SECOND_THOUGHT_S = 2.0


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_command(parser)
    add_task_flags(parser, submission.field_names("array"))
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print what the task prints and nothing else"
    )
    frame.add_master_flags(parser)


def run(args: argparse.Namespace) -> int:
    body = submission.task_of(args)
    body.pop("array", None)
    api = frame.master(args, start=True)
    task = submission.add(api, [body])["tasks"][0]
    number = int(task["id"])
    if not args.quiet:
        reason = (
            f" queued: {task['reason']}" if task["state"] == "queued" and task.get("reason") else " submitted"
        )
        frame.say(f"task {number}{reason}{submission.limit_words(api, body)}; Ctrl-C leaves it running")
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else nohup or a shell ignores it for us
        signal.signal(signal.SIGINT, first_interrupt)
    try:
        ended = follow(api, number)
    except KeyboardInterrupt:
        return leave(api, number)
    if not args.quiet and ended["state"] != "completed":
        frame.say(waiting.epitaph(ended))
    return waiting.exit_code(ended)


def follow(api: Api, number: int) -> dict[str, object]:
    """The log to its end, and the task as it ended. A task that never began has no log."""
    from lab_gpu.client.logs import show_log

    try:
        ended = show_log(api, number, follow=True, tty=sys.stdout.isatty())
    except NotFound:
        ended = None
    return ended or waiting.wait_for(api, [number])[0]


def first_interrupt(*_: object) -> None:
    """The next one is kept for `leave`: it may come while the log is still being closed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    raise KeyboardInterrupt


def leave(api: Api, number: int) -> int:
    """The first Ctrl-C only leaves; for a moment a second one is taken as the wish to stop the task."""
    frame.say(
        f"\ntask {number} goes on; lab-gpu logs -f {number} follows it again; "
        f"Ctrl-C again within {SECOND_THOUGHT_S:.0f} s cancels it"
    )
    again = signal.sigtimedwait((signal.SIGINT,), SECOND_THOUGHT_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    if again:
        answer = api.post("/api/v1/tasks/actions", {"action": "cancel", "ids": [number]})
        for error in answer["errors"]:
            frame.say(f"lab-gpu: {error['text']}")
        if not answer["errors"]:
            frame.say(f"\ntask {number} is being cancelled; lab-gpu wait {number} waits for its end")
    return waiting.INTERRUPTED
