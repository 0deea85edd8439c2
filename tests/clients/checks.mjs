// What every Node script here shares. A script runs in a folder of its own, where its client is installed.

import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";

// One run of a program; on a busy machine most of it is its start.
const RUN_MS = 100_000;

export const ROOT_URL = process.env.LLMGW_CHECK_URL;
export const BASE_URL = `${ROOT_URL}/v1`;
export const KEY = process.env.LLMGW_CHECK_KEY;
// Of a budget that has room for no request.
export const SPENT_KEY = process.env.LLMGW_CHECK_SPENT_KEY;

export const REAL = "gemma3-270m";
export const REAL_EMBEDDINGS = "gemma3-270m-embeddings";
export const SIM = "sim";
export const THINKS = "sim-thinks";

export const HI = [{ role: "user", content: "Say hello." }];
// The simulated model asks a tool once for each thing that is quoted.
export const CITIES = "What is the weather in 'Paris' and in 'Rome'?";
export const ASKS = [{ role: "user", content: CITIES }];
export const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

// Run the function with each model, and print what came of it: whatever it throws is a problem.
export async function check(what, models, run) {
  for (const model of models) {
    let problem = "";
    try {
      await run(model);
    } catch (error) {
      const place = /\.mjs:(\d+)/.exec(error?.stack ?? "")?.[1] ?? "?";
      problem = `${error?.name ?? "Error"}: ${error?.message ?? error} (line ${place})`;
    }
    console.log(JSON.stringify({ check: what, model, problem }));
  }
}

// The error of this very kind that the call throws.
export async function throws(kind, call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`${kind.name} was not thrown`);
}

// A fetch that counts what goes out.
export function counting() {
  const counted = (url, init) => {
    counted.requests += 1;
    return fetch(url, init);
  };
  counted.requests = 0;
  return counted;
}

export async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

// What the simulated model is told to do, word for word: to call tools, each after the result of the one before. Its
// last words are the last result.
export const told = (...calls) =>
  `Do this. ${calls.map(([name, given]) => `[[${name} ${JSON.stringify(given)}]]`).join(" ")}`;

// A folder for one run of a client, with nothing in it but these files, and a home without settings of anybody's.
export async function workplace(files = {}) {
  const place = await mkdtemp(join(tmpdir(), "llmgw-client-"));
  const home = join(place, "home");
  await mkdir(home);
  const work = join(place, "work");
  await mkdir(work);
  for (const [name, text] of Object.entries(files)) {
    await mkdir(dirname(join(work, name)), { recursive: true });
    await writeFile(join(work, name), text);
  }
  return { home, work, remove: () => rm(place, { recursive: true, force: true, maxRetries: 5 }) };
}

// Run a client's program to its end: its exit status and what it printed. `input` is what it reads.
export async function ran(program, args, { home, work, env = {}, input = "" }) {
  const own = { PATH: process.env.PATH, LANG: "C.UTF-8", TERM: "dumb", HOME: home, ...env };
  const child = spawn(resolve("node_modules", ".bin", program), args, { env: own, cwd: work });
  let out = "";
  let err = "";
  child.stdout.on("data", (data) => (out += data));
  child.stderr.on("data", (data) => (err += data));
  child.stdin.end(input);
  const timer = setTimeout(() => child.kill("SIGKILL"), RUN_MS);
  const status = await new Promise((done, failed) => {
    child.on("close", done);
    child.on("error", failed);
  });
  clearTimeout(timer);
  return { status, out, err, all: `${out}\n${err}` };
}

// The lines of JSON in what was printed.
export const lines = (text) =>
  text
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line));
