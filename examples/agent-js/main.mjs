// node main.mjs PROBLEM.mjs --agent 4 --cloud wss://HOST:PORT --keys FOLDER --state FILE
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import WebSocket from "ws";
import { Agent } from "./agent.mjs";
import { PROTOCOL, write } from "./messages.mjs";

const BYTES = ["config", "receipt", "sent"];
const SILENT_MS = 35_000; // the cloud pings after 25 s

/** Replace the state file, which its owner alone can read, durably. */
function save(file, memory) {
  const told = { ...memory };
  for (const name of BYTES) told[name] = Buffer.from(memory[name]).toString("hex");
  const handle = openSync(`${file}.new`, "w", 0o600);
  writeSync(handle, JSON.stringify(told));
  fsyncSync(handle);
  closeSync(handle);
  renameSync(`${file}.new`, file);
}

function load(saved) {
  const memory = { ...saved };
  for (const name of BYTES) memory[name] = new Uint8Array(Buffer.from(saved[name], "hex"));
  return memory;
}

/** Drive the device; one that refuses a setpoint must not stop the run, which would reveal it. */
function apply(agent) {
  try {
    if (agent.run) agent.problem.apply?.(agent.setpoint());
  } catch (error) {
    console.error(`apply failed: ${error.name}`);
  }
}

/** One connection, to its end: what to do then. */
function converse(agent, url, tls) {
  return new Promise((ended) => {
    const socket = new WebSocket(url, [PROTOCOL], { ...tls, perMessageDeflate: false, maxPayload: 1 << 24, handshakeTimeout: 10_000 });
    const end = (outcome) => (ended(outcome), socket.close(), clearTimeout(silence));
    const silence = setTimeout(() => socket.terminate(), SILENT_MS);
    const say = (message) => socket.send(write(message), { binary: true });
    socket.on("open", () => say(agent.hello()));
    socket.on("ping", () => silence.refresh());
    socket.on("message", (data, isBinary) => {
      silence.refresh();
      if (socket.readyState !== WebSocket.OPEN) return;
      const next = isBinary ? agent.hear(data) : { do: "reconnect" };
      if (next.do === "say") say(next.say);
      if (next.do === "say" || next.do === "wait") apply(agent);
      else end(next);
    });
    socket.on("unexpected-response", (_, answer) => {
      const why = { 403: "revoked", 426: `version: the cloud does not speak ${PROTOCOL}` }[answer.statusCode];
      end(why ? { do: "stop", why } : { do: "reconnect" });
    });
    socket.on("error", (error) => {
      const version = /subprotocol/i.test(error.message);
      end(version ? { do: "stop", why: `version: the cloud does not speak ${PROTOCOL}` } : { do: "reconnect" });
    });
    socket.on("close", () => end({ do: "reconnect" }));
  });
}

async function main() {
  const text = { type: "string" };
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: { agent: text, cloud: text, keys: text, state: text, "allow-simulated": { type: "boolean" } },
  });
  const missing = ["agent", "cloud", "keys", "state"].filter((name) => options[name] === undefined);
  if (missing.length || positionals.length !== 1)
    throw new Error(`a problem's module, --agent, --cloud, --keys and --state are needed, got no ${missing.join(", ") || "module"}`);
  const { default: problem } = await import(pathToFileURL(resolve(positionals[0])));
  const [ca, cert, key] = ["ca", "cert", "key"].map((name) => readFileSync(join(options.keys, `${name}.pem`)));
  const agent = new Agent(problem, Number(options.agent), {
    memory: existsSync(options.state) ? load(JSON.parse(readFileSync(options.state, "utf8"))) : null,
    save: (memory) => save(options.state, memory),
    allowSimulated: options["allow-simulated"],
  });
  for (let pause = 0.1; ; ) {
    const before = agent.memory.round;
    const outcome = await converse(agent, options.cloud, { ca, cert, key, minVersion: "TLSv1.3" });
    if (outcome.do === "stop") throw new Error(outcome.why);
    if (outcome.do === "done") {
      if (outcome.confirmed) await new Promise((go) => setTimeout(go, 1000 * outcome.wait));
      apply(agent);
      console.error(`done after ${agent.memory.round} rounds`);
      return;
    }
    pause = agent.memory.round > before ? 0.1 : Math.min(2 * pause, 30);
    await new Promise((go) => setTimeout(go, 1000 * pause * (0.5 + Math.random() / 2)));
  }
}

main().catch((error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
});
