"""Pictures of a report as files of their own."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from directgp.files.replacing import replace_file
from directgp.reports.figures.rendering import Drawn


def write_pictures(folder: Path, pictures: Sequence[Drawn], names: Iterable[str]) -> None:
    """Write each as PNG and SVG; of all the names a report may have, remove those it has not."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in pictures:
        replace_file(folder / f"{each.picture.name}.png", each.png)
        replace_file(folder / f"{each.picture.name}.svg", each.wide.encode())
    _remove(folder, {*names} - {each.picture.name for each in pictures})


def _remove(folder: Path, names: set[str]) -> None:
    """Those of an earlier report; pictures by other names are not ours."""
    for name in names:
        for kind in ("png", "svg"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
