"""`gyroscope flower`: training over Flower's network."""

from __future__ import annotations

import argparse
from typing import Any

_NEXT = """\
wrote {folder}. Try it with 5 simulated nodes:

  export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
  flower-superlink --simulation --insecure --disable-runtime-dependency-installation --port 8001 &

with these lines in ~/.flwr/config.toml:

  [superlink.sim]
  address = "127.0.0.1:8001"
  insecure = true

and then:

  flwr run {folder} sim --stream --federation-config 'num-supernodes=5'
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "flower",
        help="a Flower app whose server applies a rule to what the nodes send",
        description="Training over Flower's network with a rule, f of the nodes Byzantine. The page Gyroscope in "
        "Flower of the documentation explains it.",
    )
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="write a small complete Flower app",
        description="Write a Flower app: pyproject.toml with its configuration, server_app.py, client_app.py. It "
        "trains one of Gyroscope's tasks; edit it to train your own.",
    )
    new.add_argument("folder", metavar="DIR", help="a new or empty folder")
    new.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    from gyroscope.integrations.flower import new_app

    print(_NEXT.format(folder=new_app.write(options.folder)), end="")
    return 0
