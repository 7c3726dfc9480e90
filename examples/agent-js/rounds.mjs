// The computation of an agent: its step with the proximal term, its answer, what it contributes.
// An objective and contributions are separable here: slopes are given component by component.

const REPEATING = new Set(["offset", "everything"]);

/** The nearest integer, halves to the even neighbour. */
export function rint(value) {
  const below = Math.floor(value);
  const rest = value - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

const clip = (v, low, high) => (v < low ? low : v > high ? high : v);
const finite = (v) => {
  if (!Number.isFinite(v)) throw new RangeError("not finite");
  return v;
};

/** The sum of the agents' contributions to one sum in steps of its grid, within its range. */
export function total(contributions, grid, least, most) {
  const steps = contributions.map((h) => BigInt(finite(rint(h / grid))));
  return clip(steps.reduce((a, b) => a + b, 0n), least, most);
}

/** What a state contributes to every sum of the run. */
export const contributed = (problem, run, x) =>
  run.sums.map((o, i) => {
    const part = problem.sums[o] === undefined ? [] : [problem.sums[o].value(x)];
    return total(part, run.grid[i], run.least[i], run.most[i]);
  });

/** Where a state begins: clipped to the bounds. */
export const clipped = (run, x) => x.map((v, c) => clip(v, run.lower[c], run.upper[c]));

/** Round k: x(k), z, W and the answer become those after it; k may lie beyond the next round. */
export function step(problem, run, kept, k, price) {
  const answer = averaged(run, kept, k);
  try {
    const { x, z, W } = moved(problem, run, kept, k, price);
    return { x, z, W, answer, substituted: false, values: contributed(problem, run, x) };
  } catch {
    // Stopping would reveal something about the state: what comes instead depends on no failure.
    const middle = clipped(run, run.lower.map((low, c) => low / 2 + run.upper[c] / 2));
    const x = REPEATING.has(run.hide) ? kept.x : middle;
    const { z, W } = kept;
    return { x, z, W, answer, substituted: true, values: contributed(problem, run, x) };
  }
}

function averaged(run, kept, k) {
  if (kept.substituted && !run.keeps) return kept.answer; // no device follows a substitute
  const tenth = 0.1 * run.rounds;
  let answer = kept.answer;
  for (let r = kept.round + 1; r <= k; r++) {
    const counted = Math.max(1, r - Math.floor(tenth + Math.min(tenth, 10)));
    answer = answer.map((a, c) => a + (1.25 / (counted + 0.25)) * (kept.x[c] - a));
  }
  return answer;
}

function moved(problem, run, kept, k, price) {
  const { lower, upper, theta } = run;
  const entered = run.sums.filter((o) => problem.sums[o] !== undefined);
  const pull = (c, u) =>
    entered.reduce((sum, o) => sum + price[o] * problem.sums[o].slope(c, u), 0);
  const z = kept.z.map((center, c) => center + (kept.x[c] - center) / 2);
  const w = Math.max(...z.map((u, c) => Math.abs(finite(pull(c, u))) * (upper[c] - lower[c])));
  const W = Math.max(w, kept.W * (w > 0 ? k / (k + 1) : 0.5));
  const x = z.map((center, c) => {
    const width = upper[c] - lower[c];
    if (!(width > 0)) return lower[c];
    const rho = (theta * W) / (width * width);
    const slope = (u) => finite(problem.slope(c, u) + pull(c, u) + rho * (u - center));
    return zero(slope, lower[c], upper[c], center);
  });
  return { x, z, W };
}

/** The minimiser of a convex function by its slope: z where it is flat, else by bisection. */
function zero(slope, lower, upper, z) {
  if (slope(z) === 0) return z;
  if (slope(lower) >= 0) return lower;
  if (slope(upper) <= 0) return upper;
  let [low, high] = [lower, upper];
  for (;;) {
    const middle = low / 2 + high / 2;
    if (middle <= low || middle >= high) return high;
    if (slope(middle) < 0) low = middle;
    else high = middle;
  }
}
