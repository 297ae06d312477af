"""Certificates that tell the parameter server which worker calls, and a worker which server answers.

`create_authority` makes an authority and the server's certificate, `add_worker` a certificate per worker, all of them
files in one folder; `Invitations` and `join` are for workers that make their own key. `gyroscope keys` is their command
line. A worker's certificate holds its name and its number, so
whoever owns the key of worker 3 sends rows as worker 3 and as nobody else. At run time the server needs `ServerKeys`,
`identity_of` and a `RevocationList`, a worker needs `WorkerKeys`.

A function that needs the package `cryptography` (the extra `lab`) imports it when it is called.
"""

from __future__ import annotations

from gyroscope.distributed.certificates.authority import (
    AUTHORITY_DAYS,
    WORKER_DAYS,
    IssuedCertificate,
    add_worker,
    add_workers,
    create_authority,
    issued,
    revoke,
)
from gyroscope.distributed.certificates.enrolment import Invitations, join
from gyroscope.distributed.certificates.identity import WARNING_DAYS, WorkerIdentity, expiry, identity_of, validity
from gyroscope.distributed.certificates.key_files import ServerKeys, WorkerKeys
from gyroscope.distributed.certificates.revocation import RevocationList

__all__ = [
    "AUTHORITY_DAYS", "WARNING_DAYS", "WORKER_DAYS", "Invitations", "IssuedCertificate", "RevocationList",
    "ServerKeys", "WorkerIdentity", "WorkerKeys", "add_worker", "add_workers", "create_authority", "expiry",
    "identity_of", "issued", "join", "revoke", "validity",
]  # fmt: skip
