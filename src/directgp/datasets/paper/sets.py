"""Describe the data sets of the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import pyarrow as pa

from directgp.datasets.embedded import ringnorm, twonorm
from directgp.datasets.paper.parse import (
    read_abalone,
    read_banana,
    read_cadata,
    read_peds1,
    read_pol,
    read_ringnorm,
    read_sarcos,
    read_song,
    read_thyroid,
    read_twonorm,
)
from directgp.datasets.problem import Task


@final
@dataclass(frozen=True)
class Download:
    """A file at its public home."""

    url: str

    sha256: str | None = None
    """Of the file, where it is known."""


@final
@dataclass(frozen=True)
class Home:
    """Where a data set can be fetched, and how its files are read."""

    files: tuple[Download, ...]

    read: Callable[[Sequence[Path]], pa.Table]
    """From the files, in the order above, to a table with the target `y`."""

    fingerprint: str | None = None
    """Of the numbers there, where they are known."""


@final
@dataclass(frozen=True)
class PaperDataset:
    """A row of the paper's table of data sets, and where the numbers are to be had."""

    name: str

    task: Task

    rows: int
    """In the paper's table."""

    features: int
    """In the paper's table."""

    num_inducing: int
    """Inducing inputs, the paper's M."""

    target: str
    """What is to be predicted, in words."""

    licence: str
    """As stated where the numbers are from."""

    source: str
    """Where they are from, in words."""

    url: str
    """Where that is."""

    home: Home | None
    """Where they can be fetched; None where they cannot."""

    copies: tuple[str, ...] = ()
    """Fingerprints of the known copies, by which one is recognised in whatever file."""

    differences: str = ""
    """What the known copies have otherwise than the paper's table; empty if nothing."""

    not_fetched: str = ""
    """Why there is no home, if there is none."""

    generator: Callable[[], pa.Table] | None = None
    """Draws from the very distribution, where that has a formula."""

    stands_for: tuple[str, ...] = ()
    """Sets of the paper's table one of which this is; empty for a row of the table itself."""

    @property
    def size(self) -> str:
        """``15,000 × 26``."""
        return size(self.rows, self.features)

    @property
    def where_from(self) -> str:
        """Where the numbers come from if no folder has them."""
        if self.home is None:
            return f"not to be had: {self.not_fetched}"
        fetched = f"fetched from {urlsplit(self.home.files[0].url).hostname}"
        return f"{fetched}, else drawn anew" if self.generator else fetched

    @property
    def remedy(self) -> str:
        """What a user who has the numbers can do."""
        return f"Give --data-dir with {self.name}.parquet (column y)."


def size(rows: int, features: int) -> str:
    """Rows and features as the paper's table has them."""
    return f"{rows:,} × {features}"


_KEEL = "https://sci2s.ugr.es/keel/dataset/data/classification"
_ADBENCH = (
    "https://raw.githubusercontent.com/Minqi824/ADBench/"
    "f7fed68dea6901fe9a81ed51b251b1d2456790cd/adbench/datasets/Classical/38_thyroid.npz"
)
_DBALEVS = (
    "https://raw.githubusercontent.com/cemo91/DBALEVS/"
    "0fc253bf0b7d351f3be38317f1316315f08814bd/datasets/ringnorm.mat"
)
_BANANA = "46df1a29159638ad16c21048a535ae3bfe1f8662532d841f070694e0928f957e"
_THYROID = "8301035c5aab9e29679e46c15d203ccef52eb7416d9fcfd665f8d27b6431c465"
_TWONORM = "cbf695998b4e448cbc8696327e2f62791f3df90fe645fb12708bf36d4c9cbfb3"
_RINGNORM = "43d4c4b2ec53f38e450e26c2f427f230b1d1bc152c74ee0c220c823b1478dd35"

CLASSIFICATION = (
    PaperDataset(
        name="banana",
        task="classification",
        rows=5300,
        features=2,
        num_inducing=53,
        target="which of two banana-shaped clouds; class 1 is KEEL's 1.0",
        licence="none stated",
        source="KEEL repository",
        url="https://sci2s.ugr.es/keel/category.php?cat=clas",
        home=Home((Download(f"{_KEEL}/banana.zip"),), read_banana, _BANANA),
        copies=(_BANANA,),
    ),
    PaperDataset(
        name="thyroid",
        task="classification",
        rows=3772,
        features=6,
        num_inducing=37,
        target="whether the thyroid is hyperactive; class 1, one row in 40, is",
        licence="BSD-2-Clause of the repository; origin UCI",
        source="GitHub Minqi824/ADBench, from ODDS, features scaled to 0..1",
        url="https://github.com/Minqi824/ADBench",
        home=Home((Download(_ADBENCH),), read_thyroid, _THYROID),
        copies=(_THYROID,),
    ),
    PaperDataset(
        name="twonorm",
        task="classification",
        rows=7400,
        features=20,
        num_inducing=74,
        target="which of two normal clouds; class 1 is N(−a, I)",
        licence="none stated",
        source="DELVE, by way of the KEEL repository",
        url="https://sci2s.ugr.es/keel/category.php?cat=clas",
        home=Home((Download(f"{_KEEL}/twonorm.zip"),), read_twonorm, _TWONORM),
        copies=(_TWONORM,),
        generator=lambda: twonorm(rows=7400),
    ),
    PaperDataset(
        name="ringnorm",
        task="classification",
        rows=7400,
        features=20,
        num_inducing=74,
        target="which of two normal clouds; class 1 is N(a, I), inside N(0, 4I)",
        licence="none stated",
        source="DELVE, by way of GitHub cemo91/DBALEVS",
        url="https://github.com/cemo91/DBALEVS",
        home=Home((Download(_DBALEVS),), read_ringnorm, _RINGNORM),
        copies=(_RINGNORM,),
        generator=lambda: ringnorm(rows=7400),
    ),
    PaperDataset(
        name="airline",
        task="classification",
        rows=2055733,
        features=8,
        num_inducing=200,
        target="whether a flight arrived late; class 1 did, by more than 0 minutes",
        licence="records of the US government; of the packages CC0, MIT or none stated",
        source="US flights of January to April 2008, Data Expo 2009 (Hensman et al., 2015)",
        url="https://doi.org/10.7910/DVN/HG7NV7",
        home=None,
        copies=("0e8f869c2e90de303d5feedce89bd5dbdbb3fd1e74a34269896d2f8e6b7ddd5c",),
        differences=(
            "The same 8 features of other flights: 1,969,507 from several airports and years"
            " (1999 to 2024) instead of 2,055,733 from all of the US, January to April 2008; the"
            " paper does not say from which delay on a flight is late."
        ),
        not_fetched="no public file of the paper's flights with these features is known",
    ),
)
"""In the order of the paper's table."""


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


_FGP = (
    "https://raw.githubusercontent.com/trungngv/fgp/"
    "beb4dc37ed6de490845c497030966885b2445f1e/data/pol/pol_"
)
_POL = "bfa9522be5e3ee320d621faea3490fcd40e5d377c0867c999d8eb2677d1870c9"
_CADATA = "617d44cae68ef462faecf071e4191c21458da864de39d2c37a66976d10505c26"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression/cadata"
_GPML = "https://gaussianprocess.org/gpml/data/"

REGRESSION = (
    PaperDataset(
        name="pol",
        task="regression",
        rows=15000,
        features=26,
        num_inducing=100,
        target="value from 0 to 100 of the telecommunications pole problem",
        licence="personal, research or non-commercial use, with a citation (worded for the code)",
        source="GitHub trungngv/fgp, training and test files joined",
        url="https://github.com/trungngv/fgp/tree/master/data/pol",
        home=Home(
            tuple(
                Download(f"{_FGP}{part}.asc")
                for part in ("train_data", "train_labels", "test_data", "test_labels")
            ),
            read_pol,
            _POL,
        ),
        copies=(_POL,),
    ),
    PaperDataset(
        name="cadata",
        task="regression",
        rows=20640,
        features=8,
        num_inducing=206,
        target="median house value of a block group in California, 1990, in dollars",
        licence="none stated",
        source="StatLib, by way of LIBSVM's data sets",
        url=_LIBSVM,
        home=Home((Download(_LIBSVM),), read_cadata, _CADATA),
        copies=(_CADATA,),
    ),
    PaperDataset(
        name="sarcos",
        task="regression",
        rows=48933,
        features=21,
        num_inducing=100,
        target="torque of the first joint of the SARCOS arm",
        licence="none stated",
        source="data page of Rasmussen and Williams' book, training and test files joined",
        url=_GPML,
        home=Home(
            (Download(f"{_GPML}sarcos_inv.mat"), Download(f"{_GPML}sarcos_inv_test.mat")),
            read_sarcos,
        ),
        copies=("e986e0f385461d7275c3c6f11cf842d5b91ad2beb7f9448036c59e53a1c9c784",),
        differences=(
            "A subset: 7,432 rows instead of 48,933, with the same features, target and units."
        ),
    ),
    PaperDataset(
        name="song",
        task="regression",
        rows=515345,
        features=90,
        num_inducing=100,
        target="year in which a song was released",
        licence="CC BY 4.0 (UCI); of the known copy none stated, origin for research use",
        source="UCI repository, YearPredictionMSD, from the Million Song Dataset",
        url="https://archive.ics.uci.edu/dataset/203/yearpredictionmsd",
        home=Home(
            (
                Download(
                    "https://archive.ics.uci.edu/static/public/203/yearpredictionmsd.zip",
                    "06f801af323bb7798e800583acce4ea1ed2697ac12c23f4424aea0a7a3d09e11",
                ),
            ),
            read_song,
        ),
        copies=("080644e8f6d3dfaf9b09df28c20cb3a6685233f2e6afab0c15cf9d1ddd9615a7",),
        differences=(
            "A subset: 4,679 songs instead of 515,345, and 54 features instead of 90,"
            " the 12 averages and 42 of the 78 covariances of timbre."
        ),
    ),
)
"""In the order of the paper's table."""


PAPER: dict[str, PaperDataset] = {
    facts.name: facts for facts in (*REGRESSION, *CLASSIFICATION, *COUNT)
}
"""The 13 sets of the paper's table, and ``peds1``, which stands for one of them."""
