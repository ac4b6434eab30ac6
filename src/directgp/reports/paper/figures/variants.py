"""Lines of one method that differ in something else."""

from dataclasses import replace

from directgp.reports.figures.inks import Mark


def varied(mark: Mark, number: int) -> Mark:
    """The mark itself for the first, other dashes for those that follow."""
    return mark if number == 0 else replace(mark, line=":" if number % 2 else "-.")
