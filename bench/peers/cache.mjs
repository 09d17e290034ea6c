// A cache of others: hits, and a crowd of cold callers.
//
//   node cache.mjs bentocache hits-memory|hits-redis N
//   node cache.mjs bentocache cold UPSTREAM_URL KEY CALLERS
//
// REDIS_URL says where Redis is. One JSON line on stdout. `cold` says "ready" on stderr when everything is connected,
// and begins at the line "go" on stdin; KEY must not be cached yet.

import http from "node:http";
import readline from "node:readline";
import { BentoCache, bentostore } from "bentocache";
import { memoryDriver } from "bentocache/drivers/memory";
import { redisDriver } from "bentocache/drivers/redis";
import { Redis } from "ioredis";

const IN_FLIGHT = 64;
const WARM_UP = 2_000;
/** Several, as a hit in Redis holds the lock of its key: callers of one key would queue up. */
const KEYS = 500;
const PATIENCE_MS = 60_000;
const VALUE = { text: "x".repeat(100) };

const now = () => performance.now();
const round = (ms) => Math.round(ms * 1_000) / 1_000;

function fail(text) {
  process.stderr.write(`cache.mjs: ${text}\n`);
  process.exit(1);
}

// Commands of one turn of the event loop share a write: its fastest for many callers.
const connect = () =>
  new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1:6379", { enableAutoPipelining: true }).on("error", (error) =>
    fail(error.message),
  );

function cache(levels) {
  let store = bentostore();
  // Without serializing, as nothing changes what it was given: its fastest memory.
  if (levels.memory) store = store.useL1Layer(memoryDriver({ maxItems: 10_000, serialize: false }));
  if (levels.redis) store = store.useL2Layer(redisDriver({ connection: levels.redis }));
  return new BentoCache({ default: "peer", prefix: "peer", ttl: "10m", stores: { peer: store } });
}

async function hits(bento, count, inFlight) {
  let misses = 0;
  const get = (n) =>
    bento.getOrSet({
      key: `hit-${n % KEYS}`,
      factory: () => {
        misses += 1;
        return VALUE;
      },
    });
  const many = async (count) => {
    const client = async (first) => {
      for (let n = first; n < count; n += inFlight) {
        const value = await get(n);
        if (value?.text !== VALUE.text) fail("another value than was cached");
      }
    };
    await Promise.all(Array.from({ length: inFlight }, (_, first) => client(first)));
  };
  for (let n = 0; n < KEYS; n += 1) await get(n);
  await many(WARM_UP);
  misses = 0;
  const began = now();
  await many(count);
  const took = now() - began;
  if (misses > 0) fail(`${misses} of ${count} were no hits`);
  return { n: count, perSecond: Math.round((count / took) * 10_000) / 10 };
}

const agent = new http.Agent({ keepAlive: true });

function get(url) {
  return new Promise((resolve, reject) => {
    const request = http.get(url, { agent, timeout: PATIENCE_MS }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("error", reject);
      response.on("end", () =>
        response.statusCode === 200
          ? resolve(Buffer.concat(parts).toString())
          : reject(new Error(`the upstream said ${response.statusCode}`)),
      );
    });
    request.on("timeout", () => request.destroy(new Error("the upstream is late")));
    request.on("error", reject);
  });
}

/** Loads what is loaded at the first call, without asking the upstream: its calls are counted. */
async function warmUp(bento) {
  const server = http.createServer((_, response) => response.end("warm"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/`;
  for (let n = 0; n < 300; n += 1) {
    await bento.getOrSet({ key: `warm-${process.pid}-${n}`, factory: () => get(url) });
  }
  server.closeAllConnections();
  server.close();
}

async function cold(bento, url, key, callers) {
  await warmUp(bento);
  const lines = readline.createInterface({ input: process.stdin });
  process.stderr.write("ready\n");
  const said = await new Promise((resolve) => {
    lines.once("line", resolve);
    lines.once("close", () => resolve("nothing"));
  });
  lines.close();
  if (said.trim() !== "go") fail(`"go" was expected, ${said} was said`);
  let calls = 0;
  const factory = () => {
    calls += 1;
    return get(url);
  };
  const began = now();
  const caller = async () => {
    const value = await bento.getOrSet({ key, factory });
    return { value, took: now() - began };
  };
  const answers = await Promise.all(Array.from({ length: callers }, caller));
  if (answers.some(({ value }) => typeof value !== "string" || value !== answers[0].value)) {
    fail("not every caller got the same answer");
  }
  const took = answers.map(({ took }) => took).sort((a, b) => a - b);
  return { callers, calls, p50: round(took[Math.floor(callers / 2)]), max: round(took.at(-1)) };
}

const whole = (text) => (Number.isInteger(Number(text)) && Number(text) > 0 ? Number(text) : usage());
const usage = () =>
  fail("usage: node cache.mjs bentocache hits-memory|hits-redis N | cold UPSTREAM_URL KEY CALLERS");

const modes = {
  // One after the other: nothing is waited for.
  "hits-memory": (count) => hits(cache({ memory: true }), whole(count), 1),
  "hits-redis": (count) => hits(cache({ redis: connect() }), whole(count), IN_FLIGHT),
  cold: (url, key, callers) =>
    key ? cold(cache({ memory: true, redis: connect() }), url, key, whole(callers)) : usage(),
};

const [peer, mode, ...rest] = process.argv.slice(2);
if (peer !== "bentocache" || !modes[mode]) usage();
try {
  const result = await modes[mode](...rest);
  process.stdout.write(`${JSON.stringify({ peer, mode, ...result })}\n`, () => process.exit(0));
} catch (error) {
  // Its own errors say little; the cause says what it was.
  fail(error?.cause?.message ?? error?.stack ?? String(error));
}
