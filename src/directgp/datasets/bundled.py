"""Data sets that are bundled with scikit-learn, with names of columns and classes."""

import pyarrow as pa


def diabetes() -> pa.Table:
    """Progress of the disease in a year, in 442 patients, in the units of the measurements."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    features = dict(zip(data.feature_names, data.data.T, strict=True))
    return pa.table(features | {"progression": data.target})


def breast_cancer() -> pa.Table:
    """Diagnosis of 569 tumours from pictures of their cells."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    features = {
        str(name).replace(" ", "_"): column
        for name, column in zip(data.feature_names, data.data.T, strict=True)
    }
    return pa.table(features | {"diagnosis": [str(data.target_names[k]) for k in data.target]})
