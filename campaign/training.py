"""A script that trains with checkpoints, as users write it: ``python -m campaign.training train``.

``stream`` in place of ``train`` reads the rows from disk.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any


def main(kind: str) -> None:
    """Train on rows in memory or from disk, and keep the result."""
    # Ctrl-C ends the script at once while libraries are imported: some catch the exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import torch

    from directgp import train, train_stream
    from directgp.datasets.streams import ParquetRows
    from directgp.files import replace_file
    from directgp.likelihoods import Gaussian
    from directgp.posteriors import SparsePosterior
    from directgp.training import Checkpoints
    from directgp.training.result import Status

    torch.set_num_threads(1)
    out = Path("out")
    out.mkdir(exist_ok=True)
    rows = ParquetRows("rows", target="y").standardised()
    X, y = map(torch.as_tensor, rows.sample(200)[:2])
    draws = torch.Generator().manual_seed(1)
    posterior = SparsePosterior.from_data(X, y, num_inducing=10, generator=draws)
    settings: dict[str, Any] = {
        "checkpoints": Checkpoints(out / "run.checkpoint", every=5),
        "generator": torch.Generator().manual_seed(0),
    }
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if kind == "stream":
        settings |= {"epochs": 150.0, "batch_size": 20, "learning_rate": 0.01}
        result = train_stream(posterior, Gaussian(0.1), rows, **settings)
    else:
        settings |= {"max_steps": 500, "optimizer": "adam"}
        result = train(posterior, Gaussian(0.1), X, y, **settings)
    if result.status is Status.INTERRUPTED:
        sys.exit(130)
    values = {name: value.tolist() for name, value in result.posterior.state_dict().items()}
    replace_file(out / "result.json", json.dumps([result.steps, result.loss, values]).encode())
    # Python would print an exception at its end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
