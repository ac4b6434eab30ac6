"""What coordinator and contenders say to each other: one JSON object a line, one answer each.

A contender runs under an interpreter of its own, so this file needs nothing beyond Python.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

Message = dict[str, Any]


def serve(answer: Callable[[Message], Message]) -> None:
    """Answer every line of standard input until it ends; an error is an answer too."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What libraries print must not stand between the answers.
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
