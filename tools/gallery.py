"""Make the pictures of docs/gallery.md from report folders.

``python -m tools.gallery FOLDER`` reads FOLDER/solar, FOLDER/diabetes, FOLDER/visits and
FOLDER/reproduce, which the commands on the page write. It needs Pillow, and Chromium for the
pictures of pages.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from directgp.errors import require

IMAGES = Path(__file__).resolve().parents[1] / "docs/images/gallery"

PAGES = {"solar": 1350, "diabetes": 1350, "visits": 1440, "reproduce": 1240}
"""Reports and how many pixels of their pages are shown, from the top."""

FIGURES = {
    "solar": "predicted",
    "diabetes": "importance",
    "visits": "calibration",
    "reproduce": "figure-1c",
}
"""A figure of each report."""

WIDTH = 1100
FIGURE_WIDTH = 1000
COLOURS = 64
"""Enough for text and lines; a picture has less than 200 kB."""

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def page(report: Path, height: int, target: Path) -> None:
    """Save the top of a report's page as a browser shows it."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    require(browser is not None, "The gallery", "made with one of " + ", ".join(_BROWSERS), "none")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        arguments += [f"--window-size={WIDTH},{height}", f"--screenshot={shot}"]
        address = (report / "index.html").resolve().as_uri()
        command = [str(browser), *arguments, address]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        save(Image.open(shot), target)


def save(picture: Image.Image, target: Path) -> None:
    """Save a picture with few colours."""
    picture.convert("RGB").quantize(COLOURS).save(target, optimize=True)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(prog="tools.gallery", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, height in PAGES.items():
        page(folder / name, height, IMAGES / f"{name}.png")
        figure = Image.open(folder / name / f"figures/{FIGURES[name]}.png")
        height = round(figure.height * FIGURE_WIDTH / figure.width)
        save(figure.resize((FIGURE_WIDTH, height)), IMAGES / f"{name}-{FIGURES[name]}.png")


if __name__ == "__main__":
    main()
