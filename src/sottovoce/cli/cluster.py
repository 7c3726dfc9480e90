"""``--cluster tcp://...``: a Dask cluster to run studies on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sottovoce.errors import InputError

CONNECT_SECONDS = 10


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Return the client of a cluster; None, for this process, without an address.

    Raises:
        InputError: if distributed is not installed, or nothing answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster needs Dask's distributed, got none: install sottovoce[cluster]"
        ) from None
    try:
        client: Any = Client(address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise InputError(
            f"--cluster must be the address of a Dask scheduler that answers, such as "
            f"tcp://host:8786, got {address!r:.60} ({type(error).__name__})"
        ) from None
    with client:
        yield client
