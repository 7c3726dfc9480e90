// node vectors.mjs VECTORS.json: every test vector, and how many fail.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { Agent } from "./agent.mjs";
import { Malformed, read, write } from "./messages.mjs";
import paperAgent from "./paper-agent-4.mjs";
import { clipped, contributed, step, total } from "./rounds.mjs";

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
const line = { value: (x) => x[0], slope: () => 1 };

// The problems of the vectors, by their objective: slopes are worked out by hand.
const PROBLEMS = {
  "x**2 + x + 6": { slope: (c, u) => 2 * u + 1, sums: { 0: line } },
  "exp(x) + x**4 / 4": { slope: (c, u) => Math.exp(u) + u ** 3, sums: { 0: line } },
  "-2*x": { slope: () => -2, sums: { 0: line } },
  "(x - 3)**2": { slope: (c, u) => 2 * (u - 3), sums: { 0: { value: (x) => x[0] ** 2, slope: (c, u) => 2 * u } } },
  "(x0 - 1)**2": {
    slope: (c, u) => [2 * (u - 1), 6 * u - 1, 2 * u][c],
    sums: {
      0: { value: (x) => x[0], slope: (c) => (c === 0 ? 1 : 0) },
      1: { value: (x) => x[1] + x[2], slope: (c) => (c === 0 ? 0 : 1) },
    },
  },
};

const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const plain = (value) => {
  if (value instanceof Uint8Array) return Buffer.from(value).toString("hex");
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
};
const failures = [];
let checks = 0;
const check = (name, good) => (checks++, good || failures.push(name));
const near = (a, b, tolerance) => a.length === b.length && a.every((v, i) => Math.abs(v - b[i]) <= tolerance);

for (const { name, from, hex, content } of vectors.frames.good) {
  const message = read(bytes(hex), from);
  check(name, isDeepStrictEqual(plain(message), content));
  check(name, isDeepStrictEqual(plain(read(write(message), from)), content));
}
for (const { name, from, hex } of vectors.frames.bad) {
  let refused = false;
  try {
    read(bytes(hex), from);
  } catch (error) {
    refused = error instanceof Malformed;
  }
  check(name, refused);
}
for (const { name, contributions, grid, least, most, value } of vectors.rounding)
  check(name, total(contributions, grid, BigInt(least), BigInt(most)) === BigInt(value));

for (const { name, objective, steps, tolerance, ...run } of vectors.rounds) {
  const problem = { ...PROBLEMS[objective[0]] };
  Object.assign(run, { sums: run.grid.map((_, o) => o), least: run.grid.map(() => -(2n ** 62n)), most: run.grid.map(() => 2n ** 62n) });
  const x = clipped(run, run.start);
  check(name, isDeepStrictEqual(contributed(problem, run, x).map(Number), run.first));
  let kept = { x, z: x, answer: x, W: 0, round: 0 };
  for (const { round, price, fails, values, W, ...expected } of steps) {
    const slope = fails ? () => NaN : problem.slope;
    const after = step({ ...problem, slope }, run, kept, round, price);
    const right = ["x", "z", "answer"].every((part) => near(after[part], expected[part], tolerance));
    check(`${name}, round ${round}`, right && near([after.W], [W], tolerance) && isDeepStrictEqual(after.values.map(Number), values));
    kept = { ...after, round };
  }
}

for (const { name, saved, hello, exchanges, next_hello } of vectors.conversations) {
  const hold = ({ config, receipt, sent, ...rest }) => ({ ...rest, config: bytes(config), receipt: bytes(receipt), sent: bytes(sent) });
  const problem = { ...paperAgent, fingerprint: vectors.fingerprint };
  const agent = new Agent(problem, 4, { memory: saved && hold(saved), allowSimulated: true });
  check(`${name}: hello`, isDeepStrictEqual(plain(agent.hello()), hello));
  for (const { hear, ...expected } of exchanges) {
    const { why, wait, ...outcome } = agent.hear(bytes(hear));
    check(name, isDeepStrictEqual(plain(outcome), expected));
  }
  if (next_hello) check(`${name}: next hello`, isDeepStrictEqual(plain(agent.hello()), next_hello));
}
console.log(`${checks - failures.length} of ${checks} checks passed`);
failures.forEach((name) => console.log(`FAILED: ${name}`));
process.exitCode = failures.length ? 1 : 0;
