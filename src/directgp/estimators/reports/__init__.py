"""What an estimator tells people: progress, warnings, the choice of β, a summary."""
