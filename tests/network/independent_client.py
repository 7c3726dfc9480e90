"""An agent written from docs/reference/protocol.md alone, with a WebSocket library and MessagePack.

With helper.pem among its keys it masks what it contributes, with the cryptography library.
Agent 4 of the paper's problem: f(x) = x^2 + x + 6, and x is its part of the third sum.
usage: python independent_client.py PORT KEYS
"""

import hashlib
import json
import os
import ssl
import struct
import sys
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from websockets.sync.client import connect
from websockets.typing import Subprotocol

SUM = 2  # of problem.toml's sums, from 0


def stepped(
    k: int,
    x: float,
    kept: list[float],
    price: float,
    box: tuple[float, float],
    settings: dict,  # type: ignore[type-arg]
) -> float:
    """x(k+1) with the run's algorithm; the slopes are 2 x + 1 of f and price of the sum."""
    lower, upper = box
    if settings["name"] == "Tikhonov":
        gamma = settings["gamma_bar"] * float(k) ** -settings["c1"]
        alpha = settings["alpha_bar"] * float(k) ** -settings["c2"]
        x -= gamma * (2 * x + 1 + price + alpha * x)
    else:  # 2 u + 1 + price + rho (u - z) = 0
        z, worth = kept[0] + (x - kept[0]) / 2, abs(price) * (upper - lower)
        kept[:] = z, max(worth, kept[1] * (k / (k + 1) if worth > 0 else 0.5))
        rho = settings["theta"] * kept[1] / (upper - lower) ** 2
        x = (rho * z - 1 - price) / (2 + rho)
    return min(max(x, lower), upper)


class Mask:
    """Hides contributions from a split cloud."""

    def __init__(self, keys: str) -> None:
        secret = Path(keys, "mask.key").read_bytes()
        own = serialization.load_pem_private_key(secret, None)
        assert isinstance(own, x25519.X25519PrivateKey)
        self.helper = x509.load_pem_x509_certificate(Path(keys, "helper.pem").read_bytes())
        names = self.helper.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        there = bytes.fromhex(next(uri[15:] for uri in uris if uri.startswith("sottovoce:mask:")))
        self.key = own.public_key().public_bytes_raw()
        self.shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(there))
        self.session = os.urandom(16)
        self.info = b"sottovoce mask 2" + self.key + there + self.session

    def check(self, welcome: dict) -> None:  # type: ignore[type-arg]
        config = hashlib.sha256(welcome["config"].encode()).digest()
        vectors = [welcome[name] for name in ("grid", "lower", "upper", "least", "most")]
        terms = [b"sottovoce pledge 1", config, self.key, [4], welcome["sums"], vectors]
        signing = self.helper.public_key()
        assert isinstance(signing, ec.EllipticCurvePublicKey)
        signing.verify(welcome["pledge"], msgpack.packb(terms), ec.ECDSA(hashes.SHA256()))
        info = self.info + struct.pack("<2Q", len(welcome["sums"]), 4)  # p, then the agents
        kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=config, info=info)
        self.stream = kdf.derive(self.shared)

    def covered(self, k: int, values: list[int]) -> bytes:
        size = 16 * ((len(values) + 1) // 2)
        cipher = Cipher(algorithms.AES(self.stream), modes.CTR(bytes(16))).encryptor()
        mask = cipher.update(bytes(size * k))[size * (k - 1) :]
        numbers = struct.unpack(f"<{size // 8}Q", mask)
        both = [(v + m) % 2**64 for v, m in zip(values, numbers, strict=False)]
        return struct.pack(f"<{len(values)}Q", *both)


def main(port: str, keys: str) -> None:
    mask = Mask(keys) if Path(keys, "helper.pem").exists() else None
    context = ssl.create_default_context(cafile=f"{keys}/ca.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(f"{keys}/cert.pem", f"{keys}/key.pem")
    x = answer = 0.0
    k, receipt = 0, b""
    with connect(
        f"wss://127.0.0.1:{port}",
        ssl=context,
        subprotocols=[Subprotocol("sottovoce.6")],
        compression=None,
    ) as socket:

        def say(**message: object) -> None:
            socket.send(msgpack.packb(message))

        def contribute() -> None:
            if k == welcome["rounds"]:
                return  # nothing is wanted after the last round
            if welcome["states"]:
                say(type="state", round=k + 1, x=struct.pack("<d", x))
                return
            values = []
            for o, step, least, most in sums:
                whole = round(x / step) if o == SUM else 0  # Python rounds halves to even
                values.append(min(max(whole, least), most))
            if mask is not None:
                covered = mask.covered(k + 1, values)
                say(type="masked", round=k + 1, session=mask.session, values=covered)
                return
            say(type="contribution", round=k + 1, values=struct.pack(f"<{len(sums)}q", *values))

        known = {} if mask is None else {"mask": mask.key}
        say(type="hello", agents=[4], config=b"", round=k, receipt=receipt, **known)
        for frame in socket:
            message = msgpack.unpackb(frame)
            if message["type"] == "welcome":
                welcome = message
                if mask is not None:
                    mask.check(welcome)
                settings = json.loads(welcome["config"])["algorithm"]
                box = (
                    *struct.unpack("<d", welcome["lower"]),
                    *struct.unpack("<d", welcome["upper"]),
                )
                n = len(welcome["sums"])
                grid = struct.unpack(f"<{n}d", welcome["grid"])
                least, most = (struct.unpack(f"<{n}q", welcome[end]) for end in ("least", "most"))
                sums = list(zip(welcome["sums"], grid, least, most, strict=True))
                x = answer = min(max(x, box[0]), box[1])
                kept = [x, 0.0]
                if welcome["round"] == k + 1:
                    contribute()
            elif message["type"] == "round" and message["round"] > k:
                k, receipt = message["round"], message["receipt"]
                price = struct.unpack(f"<{welcome['prices']}d", message["price"])[SUM]
                said, x = x, stepped(k, x, kept, price, box, settings)
                tenth = 0.1 * welcome["rounds"]
                counted = max(1, k - int(tenth + min(tenth, 10)))
                share = 1.25 / (counted + 0.25)
                answer = x if welcome["states"] else answer + share * (said - answer)
                contribute()
            elif message["type"] == "done":
                told = {"x": x, "answer": answer, "rounds": message["rounds"]}
                sys.stdout.write(json.dumps(told))
                return
            elif message["type"] == "error":
                raise SystemExit(message["code"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
