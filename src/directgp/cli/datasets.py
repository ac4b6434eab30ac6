"""`directgp datasets`: what may be typed."""

from directgp.cli.options import DataDir, Debug, Json
from directgp.cli.terminal import Terminal


def datasets(data_dir: DataDir = None, json: Json = False, debug: Debug = False) -> None:
    """List the data sets that can be named."""
    from directgp.cli.datasets_run import list_data_sets

    list_data_sets(data_dir, Terminal(json=json))
