"""An agent written from docs/protocol.md alone: a WebSocket library, MessagePack, nothing else.

Agent 4 of the paper's problem: f(x) = x^2 + x + 6, and x is its part of the third sum.
usage: python independent_client.py PORT KEYS
"""

import json
import ssl
import struct
import sys

import msgpack  # type: ignore[import-untyped]
from websockets.sync.client import connect

SUM = 2  # of problem.toml's sums, from 0


def stepped(k: int, x: float, price: float, box: tuple[float, float], settings: dict) -> float:  # type: ignore[type-arg]
    """x(k+1) with the run's algorithm; the slopes are 2 x + 1 of f and price of the sum."""
    lower, upper = box
    if settings["name"] == "Tikhonov":
        gamma = settings["gamma_bar"] * float(k) ** -settings["c1"]
        alpha = settings["alpha_bar"] * float(k) ** -settings["c2"]
        x -= gamma * (2 * x + 1 + price + alpha * x)
    else:  # 2 z + 1 + price + eps (z - x) = 0
        eps = settings["theta"] * abs(price) / (k**0.5 * (upper - lower))
        x = (eps * x - 1 - price) / (2 + eps)
    return min(max(x, lower), upper)


def main(port: str, keys: str) -> None:
    context = ssl.create_default_context(cafile=f"{keys}/ca.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(f"{keys}/cert.pem", f"{keys}/key.pem")
    x = answer = 0.0
    k, receipt = 0, b""
    with connect(f"wss://127.0.0.1:{port}", ssl=context, compression=None) as socket:

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
            say(type="contribution", round=k + 1, values=struct.pack(f"<{len(sums)}q", *values))

        say(type="hello", version=3, agents=[4], config=b"", round=k, receipt=receipt)
        for frame in socket:
            message = msgpack.unpackb(frame)
            if message["type"] == "welcome":
                welcome = message
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
                if welcome["round"] == k + 1:
                    contribute()
            elif message["type"] == "round" and message["round"] > k:
                k, receipt = message["round"], message["receipt"]
                price = struct.unpack(f"<{welcome['prices']}d", message["price"])[SUM]
                x = stepped(k, x, price, box, settings)
                tenth = 0.1 * welcome["rounds"]
                counted = max(1, k - int(tenth + min(tenth, 10)))
                share = 1.0 if welcome["states"] else 1.25 / (counted + 0.25)
                answer += share * (x - answer)
                contribute()
            elif message["type"] == "done":
                told = {"x": x, "answer": answer, "rounds": message["rounds"]}
                sys.stdout.write(json.dumps(told))
                return
            elif message["type"] == "error":
                raise SystemExit(message["code"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
