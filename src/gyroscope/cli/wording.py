"""Reword errors for the command line: `--declared-byzantine 3` where a file has `declared_byzantine = 3`.

The library's messages name the fields of a configuration, as Python and files do. Only this module turns them into
options.
"""

from __future__ import annotations

import argparse
import re


def in_options(message: str, options: argparse.Namespace) -> str:
    """Return the message with options in place of fields, unless the mistake is in a file, which has no options."""
    of_a_file = hasattr(options, "config") and message.startswith(f"{options.config}: ")
    return message if of_a_file or hasattr(options, "resume") else reworded(message)


def reworded(message: str) -> str:
    """Return `set --declared-byzantine 3` for `set declared_byzantine = 3`.

    A name of several words is always a field. A single word (`workers`) is one only where its value is mentioned.
    """
    from gyroscope.runs.command_options import fields_of

    names = [field.name for field in fields_of()]
    one, several = "|".join(names), "|".join(sorted((name for name in names if "_" in name), key=len, reverse=True))
    for pattern in (
        rf"(?<![\w.'\"/\\-])({one}) =(?= )",
        rf"^({one})(?= must be )",
        rf"(?<=\bset )({one})(?= to )",
        rf"(?<=\blower )({one})\b",
        rf"(?<=\bleave out )({one})\b",
        rf"(?<![\w.:'\"/\\-])({several})\b(?![./\\]\w)",
    ):
        message = re.sub(pattern, lambda found: "--" + found[1].replace("_", "-"), message)
    return message
