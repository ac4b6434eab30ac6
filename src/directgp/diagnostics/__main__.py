"""``python -m directgp.diagnostics bounds`` checks the bounds of table 1 of the paper."""

import argparse

from directgp.diagnostics.bounds import MISPRINTS, bounds_table, format_checks


def main() -> None:
    """Print the checks of every bound, and the misprints."""
    parser = argparse.ArgumentParser(prog="python -m directgp.diagnostics", description=__doc__)
    parser.add_argument("table", choices=["bounds"])
    parser.parse_args()
    print("Bounds of φ = p(y|f), φ′ and φ″ over f: published, and found by search.\n")
    print(format_checks(bounds_table()))
    print("\nMisprints around the table:")
    for misprint in MISPRINTS:
        print(f"- {misprint}")


if __name__ == "__main__":
    main()
