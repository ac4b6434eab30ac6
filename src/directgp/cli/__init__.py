"""The program `directgp`."""

import signal
import sys
from pathlib import Path


def _handle_interrupts() -> None:
    """Let Ctrl-C end the program without a traceback, unless that is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the module of the handler is imported.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        from directgp.processes import interrupt

        signal.signal(signal.SIGINT, interrupt)


_started = Path(sys.argv[0] if sys.argv else "")
if _started.stem == "directgp" or _started.parts[-2:] == ("directgp", "__main__.py"):
    # Before the other modules are imported, and only in the program itself.
    _handle_interrupts()
