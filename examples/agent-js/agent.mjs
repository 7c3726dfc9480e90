// An agent as a machine without a network: it hears messages, and says what to do and to send.
import { createHash } from "node:crypto";
import { Malformed, floats, integers, packed, read } from "./messages.mjs";
import { clipped, contributed, step } from "./rounds.mjs";

const STOP = new Set(["not-yours", "other-run", "forged-receipt", "halted", "failed", "replaced", "revoked"]);
const WAIT = new Set(["conflict", "late", "old-round"]);
const MOST_GAPS = 16;
const EMPTY = new Uint8Array();
const same = (a, b) => Buffer.compare(a, b) === 0;

export class Agent {
  /** memory is what was saved, or null; save is called with it before anything is sent. */
  constructor(problem, number, { memory = null, save = () => {}, allowSimulated = false } = {}) {
    const start = { config: EMPTY, round: 0, receipt: EMPTY, sent: EMPTY, missed: [], W: 0 };
    this.memory = memory ?? { ...start, x: problem.start, z: problem.start, answer: problem.start };
    if (this.memory.x.length !== problem.start.length) throw new Error("the state file is another agent's");
    Object.assign(this, { problem, number, save, allowSimulated, run: null, confirmed: null });
  }

  /** The first message of every connection. */
  hello() {
    this.run = null;
    const { config, round, receipt } = this.memory;
    return { type: "hello", agents: [this.number], config, round, receipt };
  }

  /** What to do about a frame: say, wait, reconnect, stop or done; and what to say. */
  hear(frame) {
    try {
      const message = read(frame, "cloud");
      if (message.type === "error") return this.#refused(message.code);
      if ((message.type === "welcome") === (this.run !== null)) return { do: "reconnect" };
      return { welcome: this.#welcome, round: this.#round, done: this.#done }[message.type].call(this, message);
    } catch (error) {
      if (error instanceof Malformed) return { do: "reconnect" };
      throw error;
    }
  }

  /** What a device should apply, and what it is. */
  setpoint() {
    const waits = this.run?.keeps && !this.confirmed;
    return waits ? { x: this.problem.fallback ?? this.problem.start, which: "fallback" }
      : { x: this.memory.answer, which: this.confirmed ? "answer" : "average" };
  }

  #refused(code) {
    if (STOP.has(code)) return { do: "stop", why: `the cloud refused: ${code}` };
    return { do: WAIT.has(code) ? "wait" : "reconnect" };
  }

  #welcome(m) {
    const hash = new Uint8Array(createHash("sha256").update(m.config).digest());
    const k = this.memory.round;
    if (this.memory.config.length && !same(this.memory.config, hash)) return stop("another run than before");
    const run = described(m, this.problem.start.length);
    const why = this.#objection(m, run);
    if (why) return stop(why);
    if (Math.min(m.round, m.rounds + 1) <= k) return stop("the cloud has lost a round that it released");
    const missed = gaps(this.memory, this.number, m.spoke);
    this.run = run;
    const x = clipped(run, this.memory.x);
    const first = k === 0 ? { answer: x, z: x } : {};
    const sent = this.memory.sent.length ? this.memory.sent : packed(contributed(this.problem, run, x));
    this.#keep({ ...this.memory, ...first, config: hash, x, sent, missed });
    return m.round === k + 1 ? this.#contribute() : { do: "wait" };
  }

  #objection(m, { config }) {
    const { promise, algorithm } = config;
    if (m.states || algorithm?.name !== "DualAveraging") return "an algorithm that this agent does not know";
    if (promise?.trust === "split") return "a split cloud: this agent has no masks";
    if (config.noise !== "secure" && !this.allowSimulated) return "simulated noise: nothing would be private";
    if ((this.problem.fingerprint ?? config.problem) !== config.problem) return "another problem";
    if (this.problem.hard && !promise?.feasible) return "a hard constraint that the run does not keep";
    return m.rounds === config.rounds ? "" : "the cloud contradicts its configuration";
  }

  #round(m) {
    const { round: k, receipt } = this.memory;
    if (m.round === k && !same(m.receipt, receipt)) return stop("two different rounds of one number");
    if (m.round <= k) return { do: "wait" };
    const price = floats(m.price);
    if (price.length !== this.run.prices || !price.every(Number.isFinite) || m.y.length || m.receipt.length !== 64)
      throw new Malformed("a round");
    const { values, ...after } = step(this.problem, this.run, this.memory, m.round, price);
    // Copied: what was decoded is a view of the whole frame.
    const seen = { round: m.round, receipt: Uint8Array.from(m.receipt) };
    this.#keep({ ...this.memory, ...after, ...seen, sent: packed(values) });
    return this.#contribute();
  }

  #done(m) {
    floats(m.price);
    this.confirmed = m.confirmed && this.memory.missed.length ? false : m.confirmed;
    return { do: "done", confirmed: this.confirmed, wait: m.wait };
  }

  #contribute() {
    const { round, sent, missed } = this.memory;
    if (round >= this.run.rounds) return { do: "wait" };
    const listed = missed.length ? { missed } : {};
    return { do: "say", say: { type: "contribution", round: round + 1, values: sent, ...listed } };
  }

  #keep(memory) {
    this.save(memory);
    this.memory = memory;
  }
}

const stop = (why) => ({ do: "stop", why });

/** A run's configuration; of what is none, nothing is known, and the agent refuses it. */
function configuration(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

/** The run as an agent needs it, from a welcome whose parts fit together. */
function described(m, size) {
  const config = configuration(m.config);
  const [lower, upper, grid] = [m.lower, m.upper, m.grid].map(floats);
  const [least, most] = [m.least, m.most].map(integers);
  const fits = lower.length === size && upper.length === size && m.rows.length === m.columns.length &&
    m.columns.every((c) => c < size) && m.rows.every((r) => r < m.prices) &&
    m.sums.every((o, i) => o < m.prices && (i === 0 || o > m.sums[i - 1])) &&
    [grid, least, most].every((v) => v.length === m.sums.length) &&
    grid.every((g) => g > 0 && Number.isFinite(g));
  if (!fits) throw new Malformed("a welcome");
  return {
    config, lower, upper, grid, least, most, sums: m.sums, prices: m.prices, rounds: m.rounds,
    theta: config.algorithm?.theta, hide: config.promise?.hide, keeps: Boolean(config.promise?.feasible),
  };
}

/** The rounds whose contributions the answer lacks: the saved state was lost, or is older. */
export function gaps({ config, round, missed }, number, spoke) {
  const covered = config.length ? round + 1 : 0;
  if (spoke <= covered) return missed;
  const merged = [];
  for (const [a, b, first, last] of [...missed, [number, number, covered + 1, spoke]]) {
    const before = merged.at(-1);
    if (before && first <= before[3] + 1) before[3] = Math.max(before[3], last);
    else merged.push([a, b, first, last]);
  }
  return merged.length <= MOST_GAPS ? merged : [[number, number, merged[0][2], merged.at(-1)[3]]];
}
