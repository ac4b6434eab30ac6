"""The classification sets of the paper."""

from directgp.datasets.generators.norms import ringnorm, twonorm
from directgp.datasets.paper.facts import Download, Home, PaperDataset
from directgp.datasets.paper.matlab import read_ringnorm
from directgp.datasets.paper.text import read_banana, read_twonorm
from directgp.datasets.paper.thyroid import read_thyroid

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
