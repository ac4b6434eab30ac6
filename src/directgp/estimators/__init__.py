"""scikit-learn estimators: fit, predict, trust, save."""

from directgp.estimators.classifier import SparseGPClassifier
from directgp.estimators.count_regressor import SparseGPCountRegressor
from directgp.estimators.regressor import SparseGPRegressor

__all__ = ["SparseGPClassifier", "SparseGPCountRegressor", "SparseGPRegressor"]
