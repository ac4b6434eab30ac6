"""Sparse Gaussian processes trained for the loss they will be judged on."""

from directgp.estimators.classifier import SparseGPClassifier
from directgp.estimators.count_regressor import SparseGPCountRegressor
from directgp.estimators.regressor import SparseGPRegressor
from directgp.estimators.saving import load
from directgp.log_expectations.evaluate import expected_log_prob, log_expectation
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_path
from directgp.training.train import train

__all__ = [
    "Marginals",
    "SparseGPClassifier",
    "SparseGPCountRegressor",
    "SparseGPRegressor",
    "beta_path",
    "expected_log_prob",
    "load",
    "log_expectation",
    "train",
]
