"""The count sets of the paper."""

from directgp.datasets.paper.facts import Download, Home, PaperDataset
from directgp.datasets.paper.matlab import read_peds1
from directgp.datasets.paper.text import read_abalone

_ABALONE = "8f17699d417889dca20cdc9fcbfcb1cc69db0f6a2fc7f81fc0ffbdbce0532648"
_PEDS1 = "40cdda9e843def4fe09c07f0a32c9a83ffe6d82d7d58cf175c5f4d3de4c453bf"
_LGM = (
    "https://raw.githubusercontent.com/rsheth80/lgm_fp_inf/"
    "2faac9a2b6bd781018a4c53a983d5272c538daa3/data/glm_test_data_poisson_ucsdpeds.mat"
)
_DIRECTIONS = ("peds1_dir0", "peds1_dir1", "peds1_dir2")


def _direction(name: str) -> PaperDataset:
    return PaperDataset(
        name=name,
        task="count",
        rows=4000,
        features=30,
        num_inducing=40,
        target=f"pedestrians in a frame of a video that walk in direction {name[-1]}",
        licence="none stated",
        source="UCSD pedestrian features, of the video lab of the City University of Hong Kong",
        url="http://visal.cs.cityu.edu.hk/downloads/",
        home=None,
        not_fetched="no public file that names its direction is known; peds1 is one of the three",
    )


COUNT = (
    PaperDataset(
        name="abalone",
        task="count",
        rows=4177,
        features=9,
        num_inducing=41,
        target="rings of an abalone",
        licence="CC BY 4.0 (UCI)",
        source="UCI repository, abalone; sex coded by two columns of 0 and 1",
        url="https://archive.ics.uci.edu/dataset/1/abalone",
        home=Home(
            (
                Download(
                    "https://archive.ics.uci.edu/static/public/1/abalone.zip",
                    "755a6a67c5b266961a3f149ea13be2cfb6e6c727e48cee3c83bc0b4526210ee4",
                ),
            ),
            read_abalone,
            _ABALONE,
        ),
        copies=(_ABALONE,),
    ),
    *map(_direction, _DIRECTIONS),
    PaperDataset(
        name="peds1",
        task="count",
        rows=4000,
        features=30,
        num_inducing=40,
        target="pedestrians in a frame of a video that walk in one direction",
        licence="GPL-3.0 of the repository; of the data none stated",
        source="GitHub rsheth80/lgm_fp_inf, of a co-author of the paper",
        url="https://github.com/rsheth80/lgm_fp_inf",
        home=Home((Download(_LGM),), read_peds1, _PEDS1),
        copies=(_PEDS1,),
        differences=(
            "One of the paper's three directions, it is not known which (probably to the left);"
            " its features are standardised over all rows."
        ),
        stands_for=_DIRECTIONS,
    ),
)
"""In the order of the paper's table, then the one that stands for a direction."""
