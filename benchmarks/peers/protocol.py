"""Protocol of coordinator and libraries: one JSON object per line, one answer each.

A library has its own interpreter, so this file needs only the standard library.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

Message = dict[str, Any]


def serve(answer: Callable[[Message], Message]) -> None:
    """Answer every line of standard input; errors are sent as answers."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Output of libraries must not mix with the answers.
    os.dup2(2, 1)
    _serve(answer, sys.stdin, replies)


def _serve(answer: Callable[[Message], Message], asked: IO[str], replies: IO[str]) -> None:
    for line in asked:
        try:
            reply = answer(json.loads(line))
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
