"""A helper's answers on disk: each is here, durably, before a byte of it leaves.

It holds sums of masks with noise, and hashes that name who took part; nothing an agent said was
ever here. Beside it lie the mark of how far it had got, and the refusals, one JSON line each.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Final, final

from sottovoce.network.config import read_config
from sottovoce.network.errors import DiskError, HaltedError, StoreError
from sottovoce.network.journal import Journal
from sottovoce.network.lock import own
from sottovoce.network.mark import Mark, Reached
from sottovoce.network.protocol.helper import Answered
from sottovoce.network.protocol.messages import DIGEST, Code
from sottovoce.network.protocol.receipt import next_digest

_MAGIC: Final = b"svhelper"
_ROUND: Final = struct.Struct("<Q")
_MOST: Final = 10_000
"""Refusals that are written down; more would only fill the disk."""


@final
class HelperStore:
    """One run's answers, owned by one helper at a time.

    Args:
        path: the file, created if missing.

    Raises:
        BusyError: another helper owns it.
        StoreError: it is not a helper's store, is damaged, or has lost answers.
        HaltedError: it was rolled back once.
        DiskError: it cannot be read or written now.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self.last: Answered | None = None
        self._refusals = 0
        self._run_id = ""
        self._lock = own(self.path, owner="helper")
        try:
            self._journal = Journal(self.path, _MAGIC)
        except BaseException:
            self._lock.close()
            raise
        try:
            self._mark = Mark(self.path)
            self._load()
        except BaseException:
            self._journal.close()
            self._lock.close()
            raise

    @property
    def config(self) -> str:
        """The configuration that it is bound to; empty before the first cloud."""
        return self._journal.heading

    @property
    def run_id(self) -> str:
        """The run's name."""
        if not self._run_id:
            self._run_id = read_config(self.config).run_id
        return self._run_id

    def pin(self, config: str, sums: int) -> None:
        """Bind a new store to a run whose answers have so many numbers."""
        self._journal.begin(config, _ROUND.size + DIGEST + 8 * sums)

    def commit(self, answered: Answered) -> None:
        """Write an answer durably; returns only when it is on disk."""
        self._journal.append(_ROUND.pack(answered.k) + answered.question + answered.values)
        self.last = answered
        self._mark.write(self._reached(answered))

    def digest(self, k: int) -> bytes | None:
        """The digest of the last answer or of the one before it; None of any other round."""
        if self.last is None or not self.last.k - 1 <= k <= self.last.k:
            return None
        return self.last.digest if k == self.last.k else self.last.previous

    def halt(self, reason: str) -> None:
        """End for good, because the store was rolled back."""
        path = self._halted
        try:
            file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as stream:
                stream.write(reason + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DiskError(f"{path} cannot be written: {error.strerror}") from None
        self._mark.write(
            Reached(
                run_id=self.run_id,
                rounds=0 if self.last is None else self.last.k,
                digest=b"" if self.last is None else self.last.digest,
                halted=True,
            )
        )

    def refused(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Write a refusal down; it holds no value."""
        self._refusals += 1
        if self._refusals > _MOST:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": at, "code": code.value, "round": k, "agents": list(agents[:16])}
        try:
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
            with os.fdopen(os.open(self._refused, flags, 0o600), "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DiskError(f"{self._refused} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Give the store back."""
        self._journal.close()
        self._mark.close()
        self._lock.close()

    @property
    def _halted(self) -> Path:
        return self.path.with_name(self.path.name + ".halted")

    @property
    def _refused(self) -> Path:
        return self.path.with_name(self.path.name + ".refused")

    def _reached(self, answered: Answered) -> Reached:
        return Reached(run_id=self.run_id, rounds=answered.k, digest=answered.digest)

    def _load(self) -> None:
        if self._halted.exists():
            reason = self._halted.read_text("utf-8").strip()
            raise HaltedError(
                f"the run in {self.path} was halted for good: {reason}; start a new run with new "
                "stores, which spends privacy anew"
            )
        reached, known = self._mark.reached, b""
        digest = hashlib.sha256(self.config.encode()).digest()
        for place, body in enumerate(self._journal.records(), start=1):
            (k,) = _ROUND.unpack_from(body)
            question = body[_ROUND.size : _ROUND.size + DIGEST]
            values, previous = body[_ROUND.size + DIGEST :], digest
            if k != place:
                raise StoreError(f"{self.path} is damaged: round {place} is missing")
            digest = next_digest(previous, k, question, values)
            self.last = Answered(
                k=k, question=question, values=values, digest=digest, previous=previous
            )
            if reached is not None and k == reached.rounds:
                known = digest
        if reached is not None:
            self._compare(reached, known)

    def _compare(self, reached: Reached, known: bytes) -> None:
        """Hold the mark against the digest of the round that it speaks of."""
        same = self.config and reached.run_id == self.run_id
        if reached.halted or not same or (reached.rounds and known != reached.digest):
            raise HaltedError(
                f"{self.path} must hold round {reached.rounds:,} as it was answered, got a store "
                "that has lost it: it was rolled back, and what it answers now would tell more "
                "than was promised; put the newest files back, or start a new run with new "
                "stores, which spends privacy anew"
            )
