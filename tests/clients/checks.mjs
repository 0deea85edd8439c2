// What every Node script here shares. A script runs in a folder of its own, where its client is installed.

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
