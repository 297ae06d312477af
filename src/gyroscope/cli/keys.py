"""`gyroscope keys`: certificates for a parameter server and its workers."""

from __future__ import annotations

import argparse
import datetime
import getpass
import sys
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope.cli.list_names import text_table
from gyroscope.runs.command_options import STOPPED

_EXAMPLES = """\
examples:
  an authority, the server's certificate and those of five workers, in the folder keys:
    gyroscope keys init --host node1.example.org --host 10.0.0.5
    gyroscope keys add worker-0 worker-1 worker-2 worker-3 worker-4

  a worker with a name of its own, for a month:
    gyroscope keys add hospital-bern --number 5 --days 30

  a worker that makes its own key, and a token that counts once:
    gyroscope keys invite worker-6 --host node1.example.org          # prints the command for the worker's machine

  worker 3's key is lost or stolen: its certificate stops counting, and the worker gets another one:
    gyroscope keys revoke worker-3
    gyroscope keys add worker-3-new --number 3

  who there is, and for how long:
    gyroscope keys list

what to copy to which machine:
  the server     ca.crt, server.crt, server.key, revoked.txt (again after each revoke; the server rereads it)
  worker 3       ca.crt, worker-3.crt, worker-3.key, and nothing else
  nowhere        ca.key: whoever has it can pretend to be any worker, and the server

Keep every .crt in the folder: by them `add` knows which numbers are taken, and `revoke` what to revoke. A worker's .key
is needed on its machine only; delete it here once it is there.
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "keys",
        help="certificates by which a parameter server and its workers know each other",
        description="Make certificates, revoke and list them. A worker's certificate holds its name and its number:\n"
        "nobody without its key can send rows in its place.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    init = _action(
        actions, "init", _init, "make an authority and the server's certificate",
        "Make an authority and the server's certificate: ca.crt, ca.key, server.crt, server.key and revoked.txt.",
        """\
example:
    gyroscope keys init --host node1.example.org --host 10.0.0.5

Name every host name and address at which workers reach the server: they refuse a server that is not in its certificate.
Copy ca.crt, server.crt, server.key and revoked.txt to the server's machine. ca.key stays where it is.
""",
    )  # fmt: skip
    init.add_argument("--host", action="append", default=[], metavar="ADDR", dest="hosts",
                      help="a name or an address of the server; may be given several times (localhost, 127.0.0.1 "
                      "and ::1 are always in)")  # fmt: skip
    init.add_argument("--days", type=int, default=1825, metavar="N",
                      help="days for which both certificates are valid (default: %(default)s)")  # fmt: skip

    new = _action(
        actions, "add", _add, "make workers' certificates",
        "Make a key and a certificate for each worker: NAME.key and NAME.crt.",
        """\
examples:
    gyroscope keys add worker-0 worker-1 worker-2        # numbers 0, 1 and 2
    gyroscope keys add hospital-bern --number 3

Copy ca.crt, worker-0.crt and worker-0.key to worker 0's machine, and nothing else.
""",
    )  # fmt: skip
    new.add_argument("names", nargs="+", metavar="NAME",
                     help="worker-K for worker K, or any letters, digits, '.', '_' and '-' with --number")  # fmt: skip
    new.add_argument("--number", type=int, metavar="K", help="which worker it is, from 0 (worker-K has the number K)")
    new.add_argument("--days", type=int, metavar="N",
                     help="days for which it is valid (default: 365, or until the authority expires)")  # fmt: skip

    guest = _action(
        actions, "invite", _invite, "give workers one-time tokens, and wait for them",
        "Print a token for each worker, and wait until all have come or the time is over. A worker makes its own key,\n"
        "sends it with its token, and gets its certificate: no key is copied. A token counts once.",
        """\
example:
    gyroscope keys invite worker-5 worker-6 --host node1.example.org      # here, where ca.key is
    gyroscope keys join https://node1.example.org:29516     # on the worker's machine; it asks for the token

Whoever has a token is that worker: send it over a channel that only its owner reads.
""",
    )  # fmt: skip
    guest.add_argument("names", nargs="+", metavar="NAME", help="as of gyroscope keys add")
    guest.add_argument("--number", type=int, metavar="K", help="as of gyroscope keys add")
    guest.add_argument("--days", type=int, metavar="N", help="as of gyroscope keys add")
    guest.add_argument("--host", default="localhost", metavar="ADDR",
                       help="where workers reach this machine (default: this machine only)")  # fmt: skip
    guest.add_argument("--port", type=int, default=29516, metavar="P", help="(default: %(default)s; 0: any)")
    guest.add_argument("--minutes", type=float, default=30.0, metavar="M",
                       help="for how long the tokens are valid (default: %(default)s)")  # fmt: skip

    guest = _action(
        actions, "join", _join, "use a token: make a key and get its certificate",
        "Make a key, have it signed by the authority that made the token, and write NAME.key, NAME.crt and ca.crt.",
        """\
example:
    gyroscope keys join https://node1.example.org:29516
    gyroscope work https://node1.example.org:29517 --cert keys/worker-5.crt
""",
    )  # fmt: skip
    guest.add_argument("address", metavar="https://HOST:PORT", help="where gyroscope keys invite waits")
    guest.add_argument("--token", default="-", metavar="TOKEN",
                       help="what it printed for this worker; by default it is asked for, because other users of this "
                       "machine can read command lines")  # fmt: skip

    old = _action(
        actions, "revoke", _revoke, "make workers' certificates stop counting",
        "Add workers' certificates to revoked.txt.",
        """\
example:
    gyroscope keys revoke worker-3
    gyroscope keys add worker-3-new --number 3           # a new key for the same worker

Copy revoked.txt to the server's machine. A running server reads it again when it has changed.
""",
    )  # fmt: skip
    old.add_argument("names", nargs="+", metavar="NAME", help="the worker's name")

    _action(
        actions, "list", _list, "who there is, and for how long",
        "List the certificates in the folder: name, number, valid until (UTC), and state, which is one of\n"
        "valid, expires in N days, expired, revoked.",
    )  # fmt: skip


def _action(actions: Any, name: str, run: Any, help: str, description: str, epilog: str = "") -> Any:
    action = actions.add_parser(
        name, help=help, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action.add_argument("--folder", default="keys", metavar="DIR", help="where the files are (default: %(default)s)")
    action.set_defaults(run=run, lab=False)
    return action


def _init(options: argparse.Namespace) -> int:
    from gyroscope.distributed import certificates

    certificates.create_authority(options.folder, options.hosts, options.days)
    hosts = ", ".join(dict.fromkeys([*options.hosts, "localhost", "127.0.0.1", "::1"]))
    print(
        f"wrote an authority and its server's certificate to {options.folder}, valid for {options.days} days\n"
        f"workers reach the server at {hosts}\n"
        "to the server's machine: ca.crt, server.crt, server.key, revoked.txt\n"
        "ca.key stays here: whoever has it can pretend to be any worker, and the server"
    )
    return 0


def _add(options: argparse.Namespace) -> int:
    from gyroscope.distributed import certificates

    if options.number is not None and len(options.names) > 1:
        raise ConfigError(f"--number {options.number} cannot be the number of {len(options.names)} workers: name one")
    if options.number is not None:
        added = [certificates.add_worker(options.folder, options.names[0], options.number, options.days)]
    else:
        added = certificates.add_workers(options.folder, options.names, options.days)
    for who in added:
        names = ("ca.crt", f"{who.name}.crt", f"{who.name}.key")
        files = ", ".join(str(Path(options.folder, name)) for name in names)
        print(f"to worker {who.number}'s machine: {files}")
    until = certificates.expiry(Path(options.folder, f"{added[0].name}.crt").read_bytes())
    days = round((until - datetime.datetime.now(datetime.timezone.utc)) / datetime.timedelta(days=1))
    print(f"valid for {days} days; gyroscope keys list shows until when")
    return 0


def _invite(options: argparse.Namespace) -> int:
    from gyroscope.distributed import certificates

    if options.number is not None and len(options.names) > 1:
        raise ConfigError(f"--number {options.number} cannot be the number of {len(options.names)} workers: name one")
    if not 0 < options.minutes <= 1440:
        raise ConfigError(f"--minutes must be above 0 and at most 1440 (a day), got {options.minutes:g}")
    here = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}.get(options.host)
    here = here or ("::" if ":" in options.host else "")
    invitations = certificates.Invitations(
        options.folder, options.names, options.number, options.days, here, options.port
    )
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"on each worker's machine: gyroscope keys join https://{host}:{invitations.port}")
    for name, token in invitations.tokens.items():
        print(f"token of {name}: {token}", flush=True)
    left = invitations.wait(60 * options.minutes, lambda text: print(text, flush=True))
    if left:
        print(f"not joined within {options.minutes:g} minutes: {', '.join(left)}; their tokens are void")
    return STOPPED if left else 0


def _join(options: argparse.Namespace) -> int:
    from gyroscope.cli.work import server_address
    from gyroscope.distributed import certificates

    if not options.address.startswith("https://"):
        raise ConfigError(f"{options.address!r} is not https://HOST:PORT, as gyroscope keys invite has printed it")
    token = options.token
    if token == "-":
        token = getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()
    path = certificates.join(*server_address(options.address, True), token, options.folder)
    print(f"wrote {path}, {path.with_suffix('.key')} and {path.with_name('ca.crt')}")
    print(f"to work: gyroscope work https://SERVER:PORT --cert {path}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from gyroscope.distributed import certificates

    for name in options.names:
        who = certificates.revoke(options.folder, name)
        print(f"revoked {who.name}, number {who.number} (serial number {who.serial:x})")
    print(f"to the server's machine: {Path(options.folder, 'revoked.txt')}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from gyroscope.distributed import certificates

    rows = [
        [each.name, "-" if each.number is None else str(each.number), f"{each.expiry:%Y-%m-%d %H:%M}", each.state]
        for each in certificates.issued(options.folder)
    ]
    print("\n".join(text_table(["name", "number", "valid until", "state"], rows)))
    return 0
