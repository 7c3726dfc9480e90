// The messages of sottovoce.6: a map has a type and exactly the fields of that type.
import { decode, encode } from "@msgpack/msgpack";

export const PROTOCOL = "sottovoce.6";

/** Bytes that are no message, or one whose parts do not fit together. */
export class Malformed extends Error {}

const int = (least) => (v) => Number.isSafeInteger(v) && v >= least;
const bin = (most = Infinity, least = 0) => (v) =>
  v instanceof Uint8Array && v.length >= least && v.length <= most;
const list = (item, least = 0, most = Infinity) => (v) =>
  Array.isArray(v) && v.length >= least && v.length <= most && v.every(item);
const text = (most = Infinity) => (v) => typeof v === "string" && v.length <= most;
const bool = (v) => typeof v === "boolean";
const gaps = list(list(int(1), 4, 4), 0, 16);

// A name with a question mark may be left out.
const FIELDS = {
  agent: {
    hello: { agents: list(int(1), 1), config: bin(32), round: int(0), receipt: bin(64), "mask?": bin(32) },
    contribution: { round: int(1), values: bin(), "missed?": gaps },
    masked: { round: int(1), session: bin(16, 16), values: bin(), "missed?": gaps },
    state: { round: int(1), x: bin() },
  },
  cloud: {
    welcome: {
      config: text(), round: int(1), rounds: int(1), spoke: int(0), states: bool, prices: int(1),
      lower: bin(), upper: bin(), sums: list(int(0)), grid: bin(), least: bin(), most: bin(),
      rows: list(int(0)), columns: list(int(0)), "pledge?": bin(128), "sits_out?": list(int(1)),
    },
    round: { round: int(1), price: bin(), y: bin(), receipt: bin(64) },
    done: {
      rounds: int(1), price: bin(), confirmed: (v) => v === null || bool(v),
      wait: (v) => typeof v === "number" && v >= 0 && v <= 600, "again?": bool,
    },
    error: { code: text(32), round: int(0) },
  },
};
const LIMITS = { maxMapLength: 32, maxArrayLength: 1 << 20, maxBinLength: 1 << 24 };

/** The message in a frame from a side, "agent" or "cloud". */
export function read(frame, side) {
  let message;
  try {
    message = decode(frame, LIMITS);
  } catch {
    throw new Malformed("no MessagePack");
  }
  const kinds = FIELDS[side];
  if (typeof message !== "object" || message === null || !Object.hasOwn(kinds, message.type ?? ""))
    throw new Malformed("no message");
  const { type, ...rest } = message;
  for (const [name, valid] of Object.entries(kinds[type])) {
    const field = name.replace("?", "");
    if (Object.hasOwn(rest, field) ? !valid(rest[field]) : field === name) throw new Malformed(field);
    delete rest[field];
  }
  if (Object.keys(rest).length) throw new Malformed("an unknown field");
  return message;
}

export const write = (message) => encode(message);

const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

function numbers(bytes, at) {
  if (bytes.length % 8) throw new Malformed("a vector has 8 bytes per number");
  return Array.from({ length: bytes.length / 8 }, (_, i) => at(8 * i));
}

export const floats = (bytes) => numbers(bytes, (i) => view(bytes).getFloat64(i, true));
export const integers = (bytes) => numbers(bytes, (i) => view(bytes).getBigInt64(i, true));

export function packed(values) {
  const bytes = new Uint8Array(8 * values.length);
  values.forEach((value, i) => view(bytes).setBigInt64(8 * i, value, true));
  return bytes;
}
