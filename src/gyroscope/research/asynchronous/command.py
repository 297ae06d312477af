"""`gyroscope async`: one asynchronous run, simulated."""

from __future__ import annotations

import argparse
from typing import Any

from gyroscope.runs import command_options

_EXAMPLES = """\
how it works:
  A worker fetches the model, computes a gradient, sends it, and fetches again; it waits for nobody. The server applies
  a gradient when it arrives, if the filter accepts it. By then the model has usually changed: the number of changes
  that a gradient has missed is its staleness. Time is simulated, in rounds: a worker of speed 1 sends one gradient per
  round. A fast Byzantine worker sends many (--byzantine-speed).

filters (--filter), which see one gradient at a time:
  kardam     both of the following (Damaskinos et al. 2018); needs n >= 3f + 1 workers
  lipschitz  refuses what grew faster, relative to how far the model moved, than the n - f slowest-growing workers';
             needs n >= 2f + 1
  frequency  accepts no worker twice within 2f + 1 gradients, so that f workers never have more than f of them, however
             fast they are; needs n >= 3f + 1
  none       accepts everything

momentum (--momentum):
  workers        each worker sends the sum of its own gradients: the filter judges sums
  server-each    the server keeps a sum per worker, of what it accepted: the filter judges gradients
  server         the server keeps one sum of all that it accepted; its memory lasts 1/(1-mu) gradients, not rounds
  server-rounds  the same, with the factor mu^(1/n): its memory lasts as long as a worker's
  none

examples:
  fast Byzantine workers, without a filter and with one:
    gyroscope async --attack sign-flip --byzantine 5 --byzantine-speed 10 --filter none --out runs/open
    gyroscope async --attack sign-flip --byzantine 5 --byzantine-speed 10 --out runs/kardam

  stragglers, whose stale gradients are dampened:
    gyroscope async --stragglers 0.1 --dampening exponential:alpha=0.02 --momentum server --out runs/stale

A run directory holds what `gyroscope train` writes, and arrivals.csv with a line for every gradient. metrics.csv has
columns of its own (documentation: Asynchronous training). The same configuration and seed give the same bits. An
interrupted run cannot be resumed, and `gyroscope report` does not read these directories.

"""


def add(commands: Any) -> None:
    """Add the command to the command line's parsers."""
    command = commands.add_parser(
        "async",
        help="simulate asynchronous training: stale gradients, fast Byzantine workers, filters",
        description="Train a model with n workers of different speeds, f of them Byzantine, that do not wait for each "
        "other. What you leave out is taken from the task.",
        epilog=_EXAMPLES + command_options.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        options=_add_options,
    )
    command.set_defaults(run=_run)


def _add_options(command: command_options.CommandParser) -> None:
    from gyroscope.research.asynchronous.async_config import AsyncConfig

    files = command.add_argument_group("from and to files")
    files.add_argument("--config", metavar="TOML", help="read the configuration; options given besides it win")
    files.add_argument("--out", metavar="DIR", help="run directory to write (default: runs/ and a name of its own)")
    files.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    command_options.add_configuration(command, AsyncConfig)
    command.add_argument_group("what is shown").add_argument("--quiet", action="store_true", help="no progress")


def _run(options: argparse.Namespace) -> int:
    from gyroscope.research import asynchronous
    from gyroscope.runs import run_dir

    config, out, overwrite = command_options.configuration(options, asynchronous.AsyncConfig)
    with command_options.interruption() as stop:
        result = asynchronous.train(
            config, out=out, overwrite=overwrite, callbacks=command_options.shown(options), stop=stop
        )
    if result.status == run_dir.INTERRUPTED:
        print(
            f"interrupted after round {result.step} of {result.config.steps}; asynchronous runs cannot be resumed: "
            f"begin anew with --overwrite -> {result.directory}"
        )
        return 130
    _print_arrivals(result)
    return command_options.conclude(result, "async")


def _print_arrivals(result: Any) -> None:
    """Print in a line what the filter did."""
    arrivals = result.arrivals
    accepted = arrivals[arrivals["accepted"]]
    print(
        f"{len(arrivals)} gradients arrived, {len(accepted)} were accepted, {int(accepted['byzantine'].sum())} of "
        f"those Byzantine; mean staleness {accepted['staleness'].mean():.1f}"
    )
