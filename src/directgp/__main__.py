"""The command line by another name: ``python -m directgp``."""

from directgp.cli.main import main

if __name__ == "__main__":
    main()
