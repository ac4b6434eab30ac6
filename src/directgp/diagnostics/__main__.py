"""``python -m directgp.diagnostics rules``: the accuracy of every rule. ``bounds``: table 1."""

import argparse

from directgp.diagnostics.bounds import MISPRINTS, bounds_table, format_checks
from directgp.diagnostics.rules import CASES, format_accuracy, grid_of, measure_all


def main() -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m directgp.diagnostics", description=__doc__)
    parser.add_argument("table", choices=["rules", "bounds"])
    if parser.parse_args().table == "rules":
        _print_rules()
    else:
        _print_bounds()


def _print_rules() -> None:
    grids = [grid_of(case) for case in CASES]
    points = sum(len(grid) for grid in grids)
    print(f"Worst relative error of log E[p(y|f)] and its gradient at {points} points:")
    print("variance 1e-8 to 100, |mean| up to 30, targets from certain to absurd.")
    print("A Monte Carlo rule is judged by one draw, so that its error is its noise.")
    print("Truth in forty digits; this takes a few minutes.\n", flush=True)
    print(format_accuracy(measure_all(CASES, grids)))


def _print_bounds() -> None:
    print("Bounds of φ = p(y|f), φ′ and φ″ over f, as published and as they are:\n")
    print(format_checks(bounds_table()))
    print("\nMisprints around the table:")
    for misprint in MISPRINTS:
        print(f"- {misprint}")


if __name__ == "__main__":
    main()
