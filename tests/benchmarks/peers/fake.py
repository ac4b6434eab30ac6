"""A fake library in a process, with known times and a known loss; it can be made to fail."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks.peers.protocol import Message, serve


def answer(message: Message) -> Message:
    if message["do"] == "steps":
        return {"seconds": 0.01 * message["number"]}
    if message["do"] == "predict":
        return {"seconds": 1e-5 * message["rows"]}
    if message["do"] == "chat":
        print("what a library prints on import")
        return {"heard": message["words"]}
    if message["do"] == "threads":
        return {"threads": os.environ.get("OMP_NUM_THREADS")}
    if message["do"] == "die":
        sys.exit("no more")
    raise ValueError(f"{message['do']} is unknown")


if __name__ == "__main__":
    serve(answer)
