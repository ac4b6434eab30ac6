"""Ctrl-C typed into the terminal of a program at a random moment, beside a busy process.

Of each: the seconds until the program ended, and its exit code, which is 130. Nothing half-written
and no process may be left. Needs Linux.
"""

import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from campaign.kills import (
    PROGRAMS,
    all_ended,
    enable_interrupt,
    finished,
    left_behind,
    phase_of,
    prepare,
    reference,
    start,
    wait_for_moment,
)
from campaign.trials import HELD, Trial

SUMS = ("seconds", "over 2 s", "over 5 s", "before", "running", "report", "after")

_HANG = 60.0
"""Seconds after which a program counts as one that does not end."""

_NAMES = ("compare", "reproduce", "fit")


class _Terminal:
    """A terminal that keeps what is printed on it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.text = b""

    def read(self) -> None:
        """Read what is there, so that the program never waits for the terminal."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                return
            if not data:
                return
            self.text += data

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


def _take_terminal() -> None:
    """Make the terminal on standard error that of this process, as a shell does."""
    import fcntl
    import termios

    fcntl.ioctl(2, termios.TIOCSCTTY, 0)
    enable_interrupt()


def attack(number: int) -> Trial:
    """Interrupt one program once, then run it again."""
    chance = random.Random(number)
    name = chance.choice(_NAMES)
    program = PROGRAMS[name]
    expected, took = reference(name)
    folder = Path(tempfile.mkdtemp(prefix="directgp-interrupts-"))
    terminal = _Terminal()
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        prepare(folder)
        shown = replace(program, words=tuple(w for w in program.words if w != "--quiet"))
        end = terminal.theirs
        process = start(shown, folder, preexec_fn=_take_terminal, stdin=end, stdout=end, stderr=end)

        def ended() -> bool:
            terminal.read()
            return process.poll() is not None

        wait_for_moment(chance, program, folder, took, ended)
        phase = phase_of(program, folder, ended())
        began = time.monotonic()
        os.write(terminal.ours, b"\x03")
        while not ended() and time.monotonic() - began < _HANG:
            time.sleep(0.01)
        seconds = time.monotonic() - began
        facts = {"seconds": seconds, phase: 1, "over 2 s": int(seconds > 2)}
        facts["over 5 s"] = int(seconds > 5)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            all_ended(process.pid, program.ending)
            return Trial(name, "hang", f"{phase}: {terminal.text[-300:]!r}", facts)
        terminal.read()
        text = terminal.text.decode(errors="replace")
        about = f"{phase}, {seconds:.1f} s: exit {process.returncode}"
        if "Traceback" in text or "unexpectedly" in text:
            return Trial(name, "traceback", f"{about} {text[-400:]!r}", facts)
        # Python itself, before it runs the program and after that, dies by the signal: a shell
        # calls that 130, too. At its end a program may be done before the signal arrives.
        done = {0} if phase in ("report", "after") else set()
        if process.returncode not in {130, -signal.SIGINT} | done:
            return Trial(name, "difference", f"{about} {text[-300:]!r}", facts)
        left = left_behind(folder)
        if left or not all_ended(process.pid, program.ending):
            return Trial(name, "left behind", f"{about} {left or 'processes'}", facts)
        code, text, _ = finished(start(program, folder, program.again))
        if code != 0 or program.results(folder / "out") != expected:
            return Trial(name, "difference", f"{about}; again: {code} {text[-300:]!r}", facts)
        return Trial(name, HELD, facts=facts)
    finally:
        hog.kill()
        hog.wait()
        with suppress(OSError):
            terminal.close()
        shutil.rmtree(folder, ignore_errors=True)
