// Agent 4 of the paper's problem: f(x) = x^2 + x + 6, and x is its part of sum 2.
export default {
  start: [0],
  slope: (c, u) => 2 * u + 1,
  sums: { 2: { value: (x) => x[0], slope: () => 1 } },
};
