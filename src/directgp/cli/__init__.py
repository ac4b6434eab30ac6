"""The command line: parse, call, print."""

import signal
import sys
from pathlib import Path

from directgp.errors import require_extra

require_extra(
    "The program directgp", "cli", "typer", "rich", "psutil", "pyarrow", "jinja2", "matplotlib"
)

_started = Path(sys.argv[0] if sys.argv else "")
if (
    _started.stem == "directgp" or _started.parts[-2:] == ("directgp", "__main__.py")
) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # In the program itself: Ctrl-C ends it without a traceback while its modules are imported,
    # until `main` sets a handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
