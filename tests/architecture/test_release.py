"""What a release is made of: version, libraries and extras, files of the wheel, workflows."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

import directgp
import directgp_paper

SOURCE = Path(directgp.__file__).parent
ROOT = SOURCE.parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_USERS = sorted(set(EXTRAS) - {"all", "browser", "dev", "docs"})


def names(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements name."""
    return {each.partition(">=")[0].replace("_", "-").lower() for each in requirements}


def test_each_library_in_the_source_is_a_dependency_or_in_an_extra() -> None:
    libraries: set[str] = set()
    asked: set[tuple[str, str]] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                libraries.update(each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                libraries.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "require_extra":
                extra, *needed = (ast.literal_eval(each) for each in node.args[1:])
                asked.update((extra, library) for library in needed)
    assert {("cli", "pyarrow"), ("plots", "matplotlib"), ("cluster", "ray")} <= asked
    assert not [(extra, each) for extra, each in asked if each not in names(EXTRAS[extra])]
    declared = names(
        PROJECT["dependencies"] + [each for extra in FOR_USERS for each in EXTRAS[extra]]
    )
    distributions = packages_distributions()
    undeclared = [
        library
        for library in libraries - sys.stdlib_module_names - {"directgp"}
        if not names(distributions[library]) & declared
    ]
    assert not undeclared


def test_all_has_every_extra_of_users() -> None:
    assert EXTRAS["all"] == [f"directgp[{','.join(FOR_USERS)}]"]


def test_the_version_is_that_of_the_changelog_and_of_the_citation() -> None:
    assert "version" in PROJECT["dynamic"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert (directgp.__version__, str(versions[0][1])) == (
        versions[0][0],
        re.findall(r'^date-released: "?([\d-]+)"?$', citation, re.MULTILINE)[0],
    )
    assert f"\nversion: {directgp.__version__}\n" in citation


def test_the_papers_package_has_the_same_version() -> None:
    project = tomllib.loads((ROOT / "paper/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert directgp_paper.__version__ == directgp.__version__
    assert project["dependencies"] == [f"directgp[cli]=={directgp.__version__}"]
    assert (ROOT / "paper/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(path) as wheel:
        files = set(wheel.namelist())
        information = next(each for each in files if each.endswith(".dist-info/METADATA"))
        metadata = wheel.read(information).decode()
    assert f"\nVersion: {directgp.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    links = re.findall(r"\]\((.+?)\)", metadata)
    assert links and all(link.startswith("https://") for link in links)
    ours = (
        each for each in SOURCE.rglob("*") if each.is_file() and "__pycache__" not in each.parts
    )
    expected = {each.relative_to(SOURCE.parent).as_posix() for each in ours}
    assert {each for each in files if ".dist-info/" not in each} == expected
    assert "directgp/py.typed" in expected


SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "dependabot": ".github/dependabot.yml",
    "readthedocs": ".readthedocs.yaml",
    "citation-file-format": "CITATION.cff",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_of_other_services_follow_their_schemas(schema: str) -> None:
    files = [str(path) for path in ROOT.glob(SCHEMAS[schema])]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    found = subprocess.run([*command, *files], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
