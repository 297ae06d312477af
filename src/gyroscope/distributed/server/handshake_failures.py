"""Say in a sentence why a connection did not come about, and what to do, in place of OpenSSL's own words."""

from __future__ import annotations

import ssl

from gyroscope._core.foreign_text import shortened
from gyroscope.distributed.server.refusals import Reason

_NOT_OURS = (
    "the peer shows a certificate that another authority has signed; give it one of this server's authority "
    "(gyroscope keys add)"
)
_VERIFY_CODES = {
    **dict.fromkeys((2, 18, 19, 20, 21), _NOT_OURS),
    **dict.fromkeys(
        (24, 26, 79),
        "the peer shows a certificate that is not a worker's, or that no authority has signed; give it one that "
        "gyroscope keys add has made",
    ),
    10: "the peer's certificate has expired; give it a new one (gyroscope keys revoke, keys add)",
    9: "the peer's certificate is not valid yet; set the clocks of both machines",
}
"""By OpenSSL's number of what is wrong with the peer's certificate (X509_V_ERR_...)."""

_PLAIN = (
    "the peer does not speak TLS, and this port speaks nothing else; a worker needs --cert and an address that begins "
    "with https://"
)
_HUNG_UP = (
    "the peer hung up during the handshake; port scans and health checks do that, and a worker logs its own reason"
)
_OLD = "the peer offers no TLS 1.3, and this server takes nothing older; update OpenSSL and Python there"
_REASONS = {
    "DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate; a worker needs --cert (gyroscope keys add)",
    "HTTP_REQUEST": _PLAIN,
    "PROXY_REQUEST": _PLAIN,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "UNKNOWN_PROTOCOL": _PLAIN,
    "UNSUPPORTED_PROTOCOL": _OLD,
    "ALERT_PROTOCOL_VERSION": _OLD,
    "VERSION_TOO_LOW": _OLD,
    "ALERT_UNKNOWN_CA": "the peer has the ca.crt of another authority; copy this server's ca.crt to it",
    "ALERT_BAD_CERTIFICATE": "the peer does not accept this server's certificate; let it connect to a name or address "
    "that gyroscope keys init --host was given",
    "ALERT_CERTIFICATE_EXPIRED": "the peer says that this server's certificate has expired; set its clock, or make new "
    "keys (gyroscope keys init)",
    "UNEXPECTED_EOF": _HUNG_UP,
}
"""By a part of OpenSSL's reason; versions of OpenSSL begin the same one with SSLV3_, TLSV1_ and other words."""


def explain(problem: OSError, handshake: float | None) -> tuple[Reason, str]:
    """Return why a connection did not come about: in a word, and for people.

    Args:
        problem: What asyncio raised.
        handshake: Seconds that a peer has for the handshake of TLS; None for a server without TLS.
    """
    if isinstance(problem, ssl.SSLError):
        reason: Reason = "certificate" if "CERTIFICATE" in str(problem.reason) else "handshake"
        return reason, f"no TLS connection: {_of_ssl(problem)}"
    if isinstance(problem, ConnectionAbortedError):
        if str(problem).startswith("SSL handshake"):  # asyncio's own timeout
            return "silence", f"no TLS connection: the peer did not finish the handshake within {handshake:g} s"
        return "silence", shortened(problem)
    if isinstance(problem, (ConnectionResetError, BrokenPipeError)):
        return "handshake", f"no TLS connection: {_HUNG_UP}" if handshake else "no connection: the peer hung up"
    return "handshake", f"no connection: {shortened(problem)}"


def explain_end(problem: Exception | None) -> str:
    """Return why a connection that had come about has ended."""
    if problem is None or isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return "the worker closed the connection"
    if isinstance(problem, ssl.SSLError):
        return f"what came is not from the other end of this TLS connection [{shortened(problem)}]"
    return shortened(problem)


def _of_ssl(problem: ssl.SSLError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError) and (said := _VERIFY_CODES.get(problem.verify_code)):
        return said
    if isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return _HUNG_UP
    for part, said in _REASONS.items():
        if part in str(problem.reason):
            return said
    return f"the handshake failed [{shortened(problem)}]"
