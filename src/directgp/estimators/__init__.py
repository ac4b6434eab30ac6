"""scikit-learn estimators: fit, predict, trust, save."""

from directgp.estimators.classifier import SparseGPClassifier
from directgp.estimators.count_regressor import SparseGPCountRegressor
from directgp.estimators.decomposition import Decomposition, Term
from directgp.estimators.explanations import FeatureRelevance, partial_dependence
from directgp.estimators.preprocessing import ColumnScaling
from directgp.estimators.regressor import SparseGPRegressor
from directgp.estimators.saving import load
from directgp.estimators.scorers import get_scorer, neg_coverage_error, neg_nll
from directgp.estimators.settings import device_of

__all__ = [
    "ColumnScaling",
    "Decomposition",
    "FeatureRelevance",
    "SparseGPClassifier",
    "SparseGPCountRegressor",
    "SparseGPRegressor",
    "Term",
    "device_of",
    "get_scorer",
    "load",
    "neg_coverage_error",
    "neg_nll",
    "partial_dependence",
]
