// Keeps the page in step with the cloud. Text is set as text: nothing heard becomes markup.

import { Chart, Points, written } from "/page/chart.js";

const SPEAK_SECONDS = 10; // a screen reader is told something at most this often
const CHART_SECONDS = 1;
const ASK_SECONDS = 1;
const AGAIN_SECONDS = 5;
const COLUMNS = 6;

const MEANING = {
  malformed: "not a message, or a vector of the wrong length",
  oversize: "larger than any honest frame",
  unexpected: "a message out of turn",
  version: "another version of the protocol",
  "not-yours": "the certificate does not speak for these agents",
  "other-run": "another configuration",
  "forged-receipt": "a receipt that this cloud never gave",
  halted: "the run is over for good",
  failed: "the prices ran away",
  over: "that run of the series is over",
  replaced: "a newer connection of the same agent",
  revoked: "the certificate was revoked",
  expired: "the certificate has ended",
  flood: "more messages or bytes than anybody honest sends",
  slow: "has not caught up",
  silent: "no hello within ten seconds",
  conflict: "a second, different contribution for a round",
  "old-round": "behind",
  "future-round": "ahead",
  late: "answered after its last contribution was reused",
  clipped: "a contribution outside its range: the nearest end was used",
  accept: "the system refused to accept a connection",
  certificate: "too many connections of one certificate",
  address: "too many handshakes of an address while rounds go on",
  crowd: "too many connections without a certificate",
  descriptors: "no file descriptor to spare",
  handshake: "no TLS, or not within ten seconds",
  pages: "too many requests",
  request: "no request within ten seconds",
};

const PHASE = {
  collecting: "running", committing: "running", done: "done", halted: "halted for good",
};

const $ = (id) => document.getElementById(id);
const state = { about: null, points: null, rounds: null, status: null, budget: null, over: false, charts: [] };
let paused = false, drawnAt = -Infinity, scheduled = false;

// ---- what is heard ---------------------------------------------------------------------------

async function listen() {
  const known = state.about ? `?run=${state.about.run}&seen=${state.points.last?.[0] ?? 0}` : "";
  const heard = await fetch(`/data${known}`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  if (heard) take(heard);
  else linked("bad", "not connected");
  if (!state.over) setTimeout(listen, 1000 * (heard ? ASK_SECONDS : AGAIN_SECONDS));
}

function take({ run, rounds, status, budget, over }) {
  if (run) begin(run);
  if (rounds) {
    state.rounds = rounds;
    state.budget = budget;
    rounds.points.forEach((point) => state.points.add(point));
  }
  tellChanges(state.status, status);
  state.status = status;
  state.over = over && status.phase === "done";
  if (over) drawnAt = -Infinity;
  linked("good", state.over ? "ended" : "live");
  show();
}

function linked(condition, words) {
  if ($("link").textContent === words) return;
  $("link").dataset.state = condition;
  $("link").textContent = words;
  speak(words === "live" ? "Connected to the cloud." : words === "ended" ? "The run has ended." : "The cloud cannot be reached; trying again.");
}

function begin(about) {
  state.about = about;
  state.points = new Points(about.prices.length + about.constraints.length, about.points);
  drawnAt = -Infinity;
  document.title = `sottovoce: ${about.run.slice(0, 8)}`;
  set("run", about.run);
  set("algorithm", `${about.algorithm}, ${about.private ? "secure noise" : "simulated noise"}`);
  set("rounds", about.rounds.toLocaleString("en"));
  set("agents", about.agents.toLocaleString("en"));
  set("window-p", about.window);
  set("window-c", about.window);
  set("more-prices", more(about.prices.length, about.prices_in_all, "prices"));
  set("more-constraints", more(about.constraints.length, about.constraints_in_all, "constraints"));
  $("simulated").hidden = about.private;
  $("progress").max = about.rounds;
  words($("promise"), about.promise);
  const prices = about.prices.map((name) => ({ name, limits: [], aims: [] }));
  const limits = (c) => [...new Set([c.lower, c.upper].filter((bound) => bound !== null))];
  const constraints = about.constraints.map((c) => ({ name: c.name, limits: limits(c), aims: c.aims }));
  state.charts = [...figures($("prices"), prices), ...figures($("constraints"), constraints)];
}

function more(shown, all, what) {
  return all > shown ? `The first ${shown} of ${all.toLocaleString("en")} ${what}.` : "";
}

function figures(home, series) {
  home.replaceChildren();
  return series.map(({ name, limits, aims }) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const value = make("span", "", "value");
    const caption = make("figcaption");
    caption.append(make("strong", name), value);
    const below = make("p", "", "below");
    const figure = make("figure");
    figure.append(caption, svg, ...(limits.length ? [below] : []));
    home.append(figure);
    return { name, value, below, svg, chart: new Chart(svg, limits, aims) };
  });
}

// ---- what is spoken: seldom, and only what changes what one would do -------------------------

let spokenAt = -Infinity, toSay = "", timer = 0;

function speak(sentence) {
  toSay = sentence;
  if (timer) return;
  const wait = Math.max(0, spokenAt + SPEAK_SECONDS * 1000 - performance.now());
  timer = setTimeout(() => { timer = 0; spokenAt = performance.now(); set("spoken", toSay); }, wait);
}

function tellChanges(before, now) {
  if (!before) return;
  if (now.phase === "done" && before.phase !== "done") speak("The run is done.");
  else if (now.phase === "halted" && before.phase !== "halted") speak("The run is halted for good.");
  else if (now.troubles.length > before.troubles.length) speak(now.troubles.at(-1).reason);
  else if (now.phase === "done") return; // whoever leaves now has heard the end
  else if (now.missing > before.missing) speak(`${count(now.missing, "agent")} missing: ${now.absent.slice(0, 3).map((a) => named(a.agent)).join(", ")}.`);
  else if (now.missing < before.missing) speak(now.missing ? `${count(now.missing, "agent")} still missing.` : "All agents are connected.");
}

// ---- what is shown ---------------------------------------------------------------------------

function show() {
  if (scheduled || paused) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; if (!paused) render(); });
}

function render() {
  if (!state.about) return;
  if (state.rounds) renderRounds(state.rounds);
  if (state.status) renderStatus(state.status);
  if (state.budget) renderBudget(state.budget);
  if (state.rounds && performance.now() - drawnAt >= CHART_SECONDS * 1000) {
    drawnAt = performance.now();
    renderCharts();
  }
}

function renderRounds({ round, rate }) {
  set("round", round.toLocaleString("en"));
  set("rate", rate >= 100 ? Math.round(rate).toLocaleString("en") : rate.toFixed(1));
  $("progress").value = round;
}

function renderStatus(status) {
  set("connected", status.connected.toLocaleString("en"));
  const over = status.phase === "done"; // agents that have heard the end leave
  set("absent", over ? "the run is over" : status.missing ? `${status.missing.toLocaleString("en")} missing` : "nobody is missing");
  $("absent").className = status.missing && !over ? "under bad" : "under";
  const stalled = status.troubles.some((t) => t.code === "stalled");
  set("phase", stalled ? "stalled" : PHASE[status.phase] ?? status.phase);
  set("waited", over ? "all rounds are released" : status.seconds_since_round < 2 ? "rounds are coming" : `no round for ${duration(status.seconds_since_round)}`);
  list($("troubles"), status.troubles.map((t) => [t.reason, ""]));
  renderPeople(status);
  renderSeries(status.series);
  const refusals = Object.entries(status.refused).concat(Object.entries(status.turned_away));
  refusals.sort((a, b) => b[1] - a[1]);
  table($("refused"), ["reason", "#count", "meaning"], refusals.map(([code, n]) => [code, n.toLocaleString("en"), MEANING[code] ?? ""]), "nothing was refused");
  set("held", status.held ? `${status.held.toLocaleString("en")} times a round went on without an agent.` : "");
}

function renderSeries(series) {
  $("h-series").parentElement.hidden = !series;
  if (!series) return;
  const next = series.next ? `, the next at ${series.next.replace("T", " ").replace("Z", " UTC")}` : "";
  set("series", `${series.name}: ${series.state}, ${count(series.answered, "run")} answered${next}. ${series.why}`);
  const out = series.sat_out.map((one) => [named(one.agent), one.why]);
  if (series.sat_out_count > out.length) out.push([`and ${series.sat_out_count - out.length} more`, ""]);
  table($("sat-out"), ["agent", "sat out the last run"], out, "nobody sat out the last run");
  const runs = series.runs.toReversed().map((run) => [String(run.number), run.opened, `${run.status}${run.reason ? `: ${run.reason}` : ""}`, String(run.agents), String(run.rounds), run.seconds.toFixed(1)]);
  table($("runs"), ["run", "opened", "ended", "#agents", "#rounds", "#seconds"], runs, "no run is over");
  list($("series-promise"), series.promise.map((line) => [line, ""]));
}

function renderPeople(status) {
  const gone = status.phase === "done" ? "has left" : "missing";
  const away = new Map(status.absent.map((a) => [a.agent, a]));
  list($("people"), state.about.names.map((name, i) => (away.has(i + 1) ? [`${name} ${gone}`, gone === "missing" ? "bad" : ""] : [name, "good"])));
  const rest = status.missing - status.absent.length;
  const missing = (status.phase === "done" ? [] : status.absent).map((a) => [named(a.agent), duration(a.seconds), a.since.replace("T", " ").replace("Z", " UTC")]);
  if (rest > 0 && missing.length) missing.push([`and ${rest.toLocaleString("en")} more`, "", ""]);
  table($("missing"), ["agent", "#for", "last seen"], missing, gone === "missing" ? "nobody" : "the run is over");
  const late = status.last_to_answer.slice(0, 10).map((l) => [named(l.agents), String(l.rounds)]);
  table($("late"), ["agents", "#rounds"], late, "no round yet");
}

function renderBudget(budget) {
  const listed = budget.rows.length < budget.agents ? ` The ${budget.rows.length} with the least left, of ${budget.agents.toLocaleString("en")}.` : "";
  const words = budget.ledger
    ? "Gaussian-DP mu, rounded towards the worse. A run is charged in whole before its first round; spent is what all runs in the ledger cost together."
    : "Gaussian-DP mu of this whole run, rounded up. No ledger is kept: what other runs have cost is not known.";
  set("budget-note", `${words}${listed} ${budget.trouble}`);
  if (!budget.ledger) {
    table($("budget"), ["agent", "#this run"], budget.rows.map((r) => [r.agent, r.run]), "");
    return;
  }
  const rows = budget.rows.map((r) => [r.agent, r.run, r.spent ?? "no account", r.remaining ?? "", r.granted ?? "", r.share ?? null, r.protects ?? ""]);
  table($("budget"), ["agent", "#this run", "#spent in its life", "#remaining", "#granted", "share spent", "protects"], rows, "");
}

function renderCharts() {
  const span = $("span").value, about = state.about, last = state.points.last;
  state.charts.forEach(({ name, value, below, svg, chart }, s) => {
    const series = state.points.series(s, span);
    chart.draw(series);
    const now = last ? last[1 + s] : null;
    const constraint = about.constraints[s - about.prices.length];
    const judged = constraint ? standing(constraint, now) : { words: "", beyond: false };
    write(value, now === null ? "" : written(now));
    write(below, judged.words);
    below.classList.toggle("warn", judged.beyond);
    describe(svg, name, series, judged.words);
  });
  if ($("prices-table").open) overTime($("prices-table"), about.prices.map((name, s) => [name, s]), []);
  if ($("constraints-table").open) constraintTable();
}

/** How a mean of releases stands to its limits, in words, and whether noise hardly explains it. */
function standing(constraint, now) {
  if (now === null) return { limit: "", words: "", beyond: false };
  const { lower, upper } = constraint, noise = noiseOfMean(constraint);
  if (lower === null && upper === null) return { limit: "no limit", words: "no limit", beyond: false };
  const over = upper !== null && now > upper ? now - upper : lower !== null && now < lower ? lower - now : 0;
  const must = lower === null ? `at most ${written(upper)}` : upper === null ? `at least ${written(lower)}` : lower === upper ? `exactly ${written(upper)}` : `${written(lower)} to ${written(upper)}`;
  const aimed = constraint.aims.length ? `, aimed at ${constraint.aims.map(written).join(" to ")}` : "";
  const limit = `${must}${aimed}, ${over ? `off by ${written(over)}` : "kept"}`;
  return { limit, words: noise === null ? limit : `${limit}; noise of the mean ${written(noise)}`, beyond: noise !== null && over > 2 * noise };
}

/** Of independent releases with one sigma: sigma over the root of their number. */
function noiseOfMean({ sigma }) {
  return sigma === null ? null : sigma / Math.sqrt(Math.max(1, state.rounds.averaged));
}

function describe(svg, name, series, judged) {
  const last = series.at(-1);
  const words = last ? `${name}: now ${written(last.middle)}, lately between ${written(last.low)} and ${written(last.high)}, at first ${written(series[0].middle)}. ${judged}` : `${name}: no round yet`;
  if (svg.getAttribute("aria-label") !== words) svg.setAttribute("aria-label", words);
}

/** The same numbers without a picture: some moments of the run, then what is known besides. */
function overTime(details, series, further) {
  const points = state.points.list;
  const every = Math.max(1, Math.ceil((points.length - 1) / (COLUMNS - 1)));
  const moments = points.filter((_, i) => (points.length - 1 - i) % every === 0);
  const rows = series.map(([name, s], i) => [name, ...moments.map((p) => written(p[1 + s])), ...(further[i] ?? [])]);
  const heads = ["", ...moments.map((p) => `#round ${p[0].toLocaleString("en")}`), ...(further.length ? ["limit", "#noise of one release", "#of this mean"] : [])];
  table(details.querySelector("table"), heads, rows, "no round yet");
}

function constraintTable() {
  const about = state.about, last = state.points.last;
  const further = about.constraints.map((c, i) => [
    last ? standing(c, last[1 + about.prices.length + i]).limit : "",
    c.noise ?? "of several sums",
    c.sigma === null ? "" : written(noiseOfMean(c)),
  ]);
  overTime($("constraints-table"), about.constraints.map((c, i) => [c.name, about.prices.length + i]), further);
}

// ---- small things ----------------------------------------------------------------------------

function set(id, words) {
  write($(id), String(words));
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  return made;
}

/** Fill a list, if it is to say something else than it does. */
function list(home, items) {
  const key = JSON.stringify(items);
  if (home.key === key) return;
  home.key = key;
  home.replaceChildren(...items.map(([text, name]) => make("li", text, name)));
}

/** Fill a table, likewise; a heading that begins with # has numbers below it. */
function table(home, heads, rows, nothing) {
  const key = JSON.stringify([heads, rows]);
  if (home.key === key) return;
  home.key = key;
  const head = make("tr");
  head.append(...heads.map((h) => { const cell = make("th", h.replace("#", ""), h.startsWith("#") ? "num" : ""); cell.scope = "col"; return cell; }));
  const body = rows.map((row) => {
    const line = make("tr");
    line.append(...row.map((cell, i) => cellOf(cell, i, heads[i].startsWith("#"))));
    return line;
  });
  if (!rows.length) {
    const only = make("td", nothing);
    only.colSpan = heads.length;
    const line = make("tr");
    line.append(only);
    body.push(line);
  }
  const parts = [make("thead"), make("tbody")];
  parts[0].append(head);
  parts[1].append(...body);
  home.replaceChildren(...parts);
}

function cellOf(content, column, numeric) {
  const cell = make(column ? "td" : "th", typeof content === "string" ? content : "", numeric ? "num" : "");
  if (!column) cell.scope = "row";
  if (typeof content === "number") {
    const meter = make("meter");
    meter.max = 1;
    meter.high = 0.9;
    meter.value = content;
    meter.ariaLabel = `${Math.ceil(content * 100)} percent spent`;
    cell.append(meter, ` ${Math.ceil(content * 100)}%`);
  }
  return cell;
}

/** Paragraphs and lists out of the plan's own words. */
function words(home, text) {
  home.replaceChildren();
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const item = line.match(/^\s*- (.*)$/);
    if (!item) home.append(make("p", line.trim(), line.endsWith(":") ? "lead" : ""));
    else (home.lastElementChild?.tagName === "UL" ? home.lastElementChild : home.appendChild(make("ul"))).append(make("li", item[1]));
  }
}

function named(agents) {
  return state.about.names[Number(agents) - 1] ?? `agent ${agents}`;
}

function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  drawnAt = -Infinity;
  show();
});
const redraw = () => { drawnAt = -Infinity; show(); };
$("span").addEventListener("change", redraw);
document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", redraw));
addEventListener("resize", redraw);
listen();
