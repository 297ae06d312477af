"""Rewrite docs/reference/command-line.md from the parsers of the command line.

python -m benchmarks.pages.update_command_line
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from benchmarks.pages import DOCS
from gyroscope import cli

PAGE = DOCS / "reference" / "command-line.md"


def page() -> str:
    """Return the whole page."""
    top = cli.parser()
    sections = list(_sections(top))
    exit_codes = (cli.main.__doc__ or "").partition("Exit codes: ")[2].strip()
    return (
        "\n\n".join(
            [
                "# The command line",
                f"{_text(top.description or '')} `gyroscope --version` prints the version; every command has `--help`, "
                "which says the same as this page (`bench` in a checkout of the repository only).",
                f"Exit codes: {exit_codes}",
                "\n".join(f"- [`{title}`](#{title.replace(' ', '-')}): {summary}" for title, summary, _ in sections),
                *(f"## {title}\n\n{_description(parser)}" for title, _, parser in sections),
            ]
        )
        + "\n"
    )


def _sections(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the title, the summary and the parser of each command, and after it those of its actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for shown in action._choices_actions:
                command = action.choices[shown.dest]
                command.format_help()  # adds the options
                yield command.prog, _text(shown.help or ""), command
                yield from _sections(command)


def _description(parser: argparse.ArgumentParser) -> str:
    parts = [_text(parser.description or "")]
    for group in parser._action_groups:
        options = [option for option in group._group_actions if not _hidden(option)]
        if options:
            title = (group.title or "").replace("positional arguments", "arguments")
            parts += [f"**{title}**", "\n".join(_line(parser, option) for option in options)]
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog.strip()}\n```")
    return "\n\n".join(part for part in parts if part)


def _hidden(option: argparse.Action) -> bool:
    return option.help == argparse.SUPPRESS or isinstance(option, argparse._HelpAction | argparse._SubParsersAction)


def _line(parser: argparse.ArgumentParser, option: argparse.Action) -> str:
    """Return an option as an item of a list: its names, what it takes, its help."""
    formatter = argparse.HelpFormatter(parser.prog)
    help_text = formatter._expand_help(option) if option.help else ""
    choices = ", ".join(f"`{choice}`" for choice in option.choices or ())
    value = "" if option.nargs == 0 else str(option.metavar or ("" if choices else option.dest.upper()))
    names = ", ".join(f"`{f'{name} {value}'.strip()}`" for name in option.option_strings or [option.dest.upper()])
    return f"- {names}: {_text(help_text)}" + (f". One of {choices}" if choices else "")


def _text(text: str) -> str:
    """Return plain text as Markdown: letters that would mark something are escaped outside of `code`."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*_<\[\\])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
