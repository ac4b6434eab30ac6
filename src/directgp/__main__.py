"""The program ``directgp``, also by another name: ``python -m directgp``."""

import sys

from directgp.errors import MissingExtraError

_NOT_STARTED = 2
"""Exit code, as for a wrong use of the program."""


def main() -> None:
    """Run the command line, and exit."""
    try:
        from directgp.cli.main import main as run
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(_NOT_STARTED)
    run()


if __name__ == "__main__":
    main()
