"""The command line: parse, call, print.

The names in `__all__` serve commands of other packages, too. Such a command is a function that an
entry point in the group ``directgp.commands`` names; see `directgp.cli.main`. Names are imported
at their first use, so that ``--help`` starts without torch.
"""

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from directgp.errors import require_extra

if TYPE_CHECKING:
    from directgp.cli.experiment import (
        check_kept,
        check_run_folder,
        command_typed,
        open_run_folder,
        show_progress,
    )
    from directgp.cli.options import (
        DataDir,
        Device,
        Force,
        Seed,
        check_name,
        count_checked,
        jobs_option,
        split_names,
    )
    from directgp.cli.terminal import Terminal, WrongUsageError, output_option, panel, plain_table

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

__all__ = [
    "DataDir",
    "Device",
    "Force",
    "Seed",
    "Terminal",
    "WrongUsageError",
    "check_kept",
    "check_name",
    "check_run_folder",
    "command_typed",
    "count_checked",
    "jobs_option",
    "open_run_folder",
    "output_option",
    "panel",
    "plain_table",
    "show_progress",
    "split_names",
]

_MODULES = {
    "DataDir": "options",
    "Device": "options",
    "Force": "options",
    "Seed": "options",
    "Terminal": "terminal",
    "WrongUsageError": "terminal",
    "check_kept": "experiment",
    "check_name": "options",
    "check_run_folder": "experiment",
    "command_typed": "experiment",
    "count_checked": "options",
    "jobs_option": "options",
    "open_run_folder": "experiment",
    "output_option": "terminal",
    "panel": "terminal",
    "plain_table": "terminal",
    "show_progress": "experiment",
    "split_names": "options",
}
"""Module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'directgp.cli' has no attribute {name!r}")
    return getattr(import_module(f"directgp.cli.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
