"""The regression sets of the paper."""

from directgp.datasets.paper.facts import Download, Home, PaperDataset
from directgp.datasets.paper.matlab import read_sarcos
from directgp.datasets.paper.text import read_cadata, read_pol, read_song

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
