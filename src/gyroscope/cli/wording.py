"""Errors on the command line speak of options: `--declared-byzantine 3` where a file has `declared_byzantine = 3`.

The library's messages name the fields of a configuration, which is what Python and files have. Here, and nowhere else,
they become options.
"""

from __future__ import annotations

import argparse
import re


def in_options(message: str, options: argparse.Namespace) -> str:
    """The message with options in place of fields, unless a file is to be mended: it has no options."""
    of_a_file = hasattr(options, "config") and message.startswith(f"{options.config}: ")
    return message if of_a_file or hasattr(options, "resume") else reworded(message)


def reworded(message: str) -> str:
    """`set declared_byzantine = 3` becomes `set --declared-byzantine 3`.

    A name of several words can mean nothing else. One of a single word (`workers`) is an ordinary word, too, and means
    the field only where something is said about its value.
    """
    from gyroscope.cli.train import fields_of

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
