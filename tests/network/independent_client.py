"""An agent written from docs/protocol.md alone: a WebSocket library, MessagePack, nothing else.

Agent 4 of the paper's problem: f(x) = x^2 + x + 6, and x takes part in g_3 with slope 1.
usage: python independent_client.py PORT KEYS
"""

import json
import ssl
import struct
import sys

import msgpack  # type: ignore[import-untyped]
from websockets.sync.client import connect


def main(port: str, keys: str) -> None:
    context = ssl.create_default_context(cafile=f"{keys}/ca.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(f"{keys}/cert.pem", f"{keys}/key.pem")
    x, k, receipt = 0.0, 0, b""
    with connect(f"wss://127.0.0.1:{port}", ssl=context, compression=None) as socket:

        def say(**message: object) -> None:
            socket.send(msgpack.packb(message))

        say(type="hello", version=2, agents=[4], config=b"", round=k, receipt=receipt)
        for frame in socket:
            message = msgpack.unpackb(frame)
            if message["type"] == "welcome":
                settings = json.loads(message["config"])["algorithm"]
                (lower,) = struct.unpack("<d", message["lower"])
                (upper,) = struct.unpack("<d", message["upper"])
                x = min(max(x, lower), upper)
                if message["round"] == k + 1:
                    say(type="state", round=k + 1, x=struct.pack("<d", x))
            elif message["type"] == "round" and message["round"] > k:
                k, receipt = message["round"], message["receipt"]
                mu = struct.unpack("<4d", message["mu"])
                if settings["name"] == "Tikhonov":
                    gamma = settings["gamma_bar"] * float(k) ** -settings["c1"]
                    alpha = settings["alpha_bar"] * float(k) ** -settings["c2"]
                    x -= gamma * (2 * x + 1 + mu[2] + alpha * x)
                else:  # the minimiser of x^2 + x + 6 + mu_3 x
                    x = -(1 + mu[2]) / 2
                x = min(max(x, lower), upper)
                say(type="state", round=k + 1, x=struct.pack("<d", x))
            elif message["type"] == "done":
                sys.stdout.write(json.dumps({"x": x, "rounds": message["rounds"]}))
                return
            elif message["type"] == "error":
                raise SystemExit(message["code"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
