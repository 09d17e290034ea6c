// Job queues of others, driven the way our own are: node jobs.mjs PEER MODE N
//
// PEER  bullmq (REDIS_URL), graphile-worker or pg-boss (DATABASE_URL)
// MODE  enqueue, drain, idle, unique
//
// One JSON line on stdout. What a peer left behind in an earlier run is removed first.

const IN_FLIGHT = 64;
const WARM_UP = 300;
const BULK = 1_000;
const UNIQUE_ADDS = 50;
const PAYLOAD = "x".repeat(100);
// Nothing waits longer than this: a peer that loses a job shall fail, not hang.
const PATIENCE_MS = 120_000;

const now = () => performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const number = (name, otherwise) => Number(process.env[name] ?? otherwise);

function fail(text) {
  process.stderr.write(`jobs.mjs: ${text}\n`);
  process.exit(1);
}

/** What a connection to a server says when it breaks; without a listener it would end the program unexplained. */
const broken = (error) => fail(error?.stack ?? String(error));

/** Counts the runs of each job: all of them, each once. */
class Tally {
  constructor(count) {
    this.runs = new Uint8Array(count);
    this.handled = 0;
    this.strangers = 0;
    this.all = new Promise((resolve) => (this.finished = resolve));
  }

  mark(n) {
    if (!(n >= 0 && n < this.runs.length)) this.strangers += 1;
    else if (this.runs[n] < 255) this.runs[n] += 1;
    this.handled += 1;
    if (this.handled === this.runs.length) this.finished();
  }

  check() {
    const once = this.runs.reduce((sum, runs) => sum + (runs === 1 ? 1 : 0), 0);
    if (once === this.runs.length && this.handled === this.runs.length && this.strangers === 0) return;
    fail(`${this.handled} runs of ${this.runs.length} jobs, ${once} ran exactly once, ${this.strangers} unknown`);
  }
}

async function within(promise, what, ms = PATIENCE_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing after ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function until(holds, what) {
  const began = now();
  while (!(await holds())) {
    if (now() - began > PATIENCE_MS) throw new Error(`${what}: not after ${PATIENCE_MS} ms`);
    await sleep(1);
  }
}

// Each peer: open(mode), add(n), addMany(from, to), addUnique(key), work(handler, mode), stop(), settled(), close().
// `work` resolves when the worker waits or works, `settled` when no job is left that is not completed in the store.

async function bullmq() {
  const { Queue, Worker } = await import("bullmq");
  const { Redis } = await import("ioredis");
  const name = "peer";
  const url = process.env.REDIS_URL ?? "redis://127.0.0.1:6379";
  const connect = () => new Redis(url, { maxRetriesPerRequest: null }).on("error", broken);
  const connection = connect();
  // Gone when done, as in graphile-worker: fewer writes, and the set of completed jobs does not grow.
  const options = { removeOnComplete: true, removeOnFail: true };
  const queue = new Queue(name, { connection, defaultJobOptions: options }).on("error", broken);
  const connections = [connection];
  let workers = [];
  const item = (n) => ({ name: "job", data: { n, x: PAYLOAD } });
  return {
    async open() {
      await queue.waitUntilReady();
      await queue.obliterate({ force: true });
    },
    add: (n) => queue.add("job", item(n).data),
    addMany: (from, to) => queue.addBulk(Array.from({ length: to - from }, (_, i) => item(from + i))),
    // Its unique key: a deduplication id holds until the job is done.
    addUnique: (key) => queue.add("job", { n: 0 }, { deduplication: { id: key } }),
    async work(handler, mode) {
      const concurrency = mode === "drain" ? number("CONCURRENCY", 50) : mode === "unique" ? UNIQUE_ADDS : 1;
      const count = mode === "drain" ? number("WORKERS", 4) : 1;
      for (let i = 0; i < count; i += 1) {
        const shared = connect();
        connections.push(shared);
        const worker = new Worker(name, async (job) => handler(job.data.n), { connection: shared, concurrency });
        workers.push(worker.on("error", broken).on("failed", (_, error) => broken(error)));
      }
      await Promise.all(workers.map((worker) => worker.waitUntilReady()));
    },
    async stop() {
      await Promise.all(workers.map((worker) => worker.close()));
      workers = [];
    },
    async settled() {
      const counts = await queue.getJobCounts("waiting", "active", "delayed", "failed", "prioritized");
      return Object.values(counts).every((count) => count === 0);
    },
    async close() {
      await queue.close();
      for (const connection of connections) connection.disconnect();
    },
  };
}

async function graphileWorker() {
  // A log line per job is not part of the work.
  process.env.NO_LOG_SUCCESS = "1";
  const { run, makeWorkerUtils, Logger } = await import("graphile-worker");
  const { default: pg } = await import("pg");
  const schema = "peer_graphile";
  const quiet = () => (level, text) => level === "error" && process.stderr.write(`graphile-worker: ${text}\n`);
  const logger = new Logger(quiet);
  const connectionString = process.env.DATABASE_URL;
  let utils, pool, runner;
  return {
    async open(mode) {
      // One connection per call under way when adding; a drain needs few.
      pool = new pg.Pool({ connectionString, max: mode === "enqueue" ? number("CONNECTIONS", 32) : 12 });
      pool.on("error", broken).on("connect", (client) => client.on("error", broken));
      await pool.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`);
      utils = await makeWorkerUtils({ pgPool: pool, preset: { worker: { schema, logger } } });
      await utils.migrate();
    },
    add: (n) => utils.addJob("job", { n, x: PAYLOAD }),
    async addMany(from, to) {
      const specs = Array.from({ length: to - from }, (_, i) => ({
        identifier: "job",
        payload: { n: from + i, x: PAYLOAD },
      }));
      await utils.addJobs(specs);
    },
    addUnique: (key) => utils.addJob("job", { n: 0 }, { jobKey: key }),
    async work(handler, mode) {
      const drain = mode === "drain";
      const worker = { schema, logger, concurrentJobs: 1, pollInterval: 2_000 };
      if (mode === "unique") worker.concurrentJobs = 10;
      if (drain) {
        worker.concurrentJobs = number("CONCURRENCY", 16);
        worker.localQueue = { size: number("LOCAL_QUEUE", 1_000) };
        worker.completeJobBatchDelay = number("BATCH_DELAY", 0);
        worker.failJobBatchDelay = 0;
        // Plans as after a while of running; the counting of rows is not left to chance.
        await pool.query(`ANALYZE ${schema}._private_jobs`);
      }
      const taskList = { job: async (payload) => handler(payload.n) };
      runner = await run({ pgPool: pool, taskList, noHandleSignals: true, parsedCronItems: [], preset: { worker } });
      runner.promise.catch(broken);
    },
    async stop() {
      await runner.stop();
    },
    async settled() {
      const { rows } = await pool.query(`SELECT EXISTS (SELECT FROM ${schema}._private_jobs) AS some`);
      return !rows[0].some;
    },
    async close() {
      await utils.release();
      await pool.end();
    },
  };
}

async function pgBoss() {
  const { PgBoss } = await import("pg-boss");
  const { default: pg } = await import("pg");
  const schema = "peer_pgboss";
  const name = "peer";
  const connectionString = process.env.DATABASE_URL;
  let boss, pool;
  return {
    async open(mode) {
      pool = new pg.Pool({ connectionString, max: 1 }).on("error", broken);
      await pool.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`);
      // Its notifications start an idle job at once, but slow every commit: only where they help.
      const notify = mode === "idle";
      boss = new PgBoss({
        connectionString,
        schema,
        max: mode === "enqueue" ? number("CONNECTIONS", 32) : 12,
        useListenNotify: notify,
        // Nothing runs beside what is measured.
        schedule: false,
        supervise: false,
      });
      boss.on("error", broken);
      await boss.start();
      // Its default policy lets every add in; PGBOSS_POLICY=exclusive is its strictest.
      await boss.createQueue(name, { notify, policy: process.env.PGBOSS_POLICY ?? "standard" });
    },
    add: (n) => boss.send(name, { n, x: PAYLOAD }),
    addMany: (from, to) =>
      boss.insert(name, Array.from({ length: to - from }, (_, i) => ({ data: { n: from + i, x: PAYLOAD } }))),
    addUnique: (key) => boss.send(name, { n: 0 }, { singletonKey: key }),
    async work(handler, mode) {
      const drain = mode === "drain";
      if (drain) await pool.query(`ANALYZE ${schema}.job`);
      const options = {
        pollingIntervalSeconds: 0.5,
        batchSize: drain ? number("BATCH", 1_000) : 1,
        // A full batch is followed by the next fetch at once instead of a pause.
        burstWhenBatchFull: true,
        localConcurrency: drain ? number("LOOPS", 2) : mode === "unique" ? UNIQUE_ADDS : 1,
      };
      await boss.work(name, options, async (jobs) => {
        for (const job of jobs) await handler(job.data.n);
      });
    },
    async stop() {
      await boss.offWork(name);
    },
    async settled() {
      const open = `SELECT EXISTS (SELECT FROM ${schema}.job WHERE name = $1 AND state < 'completed') AS some`;
      const { rows } = await pool.query(open, [name]);
      return !rows[0].some;
    },
    async close() {
      await boss.stop({ graceful: false });
      await pool.end();
    },
  };
}

/** So many clients, each adding one job after the other. */
async function addOneByOne(peer, count) {
  const client = async (first) => {
    for (let n = first; n < count; n += IN_FLIGHT) await peer.add(n);
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, (_, first) => client(first)));
}

async function addAll(peer, count) {
  for (let from = 0; from < count; from += BULK) await peer.addMany(from, Math.min(count, from + BULK));
}

/** From the start of a worker, connected already, to the last completion in the store. */
async function drained(peer, count) {
  const tally = new Tally(count);
  await addAll(peer, count);
  const began = now();
  await peer.work((n) => tally.mark(n), "drain");
  await within(tally.all, `${count} jobs`);
  await until(() => peer.settled(), "every completion");
  const took = now() - began;
  await peer.stop();
  tally.check();
  return took;
}

const modes = {
  async enqueue(peer, count) {
    await addOneByOne(peer, WARM_UP);
    const began = now();
    await addOneByOne(peer, count);
    return { perSecond: perSecond(count, now() - began) };
  },

  async drain(peer, count) {
    await drained(peer, WARM_UP);
    return { perSecond: perSecond(count, await drained(peer, count)) };
  },

  /** With nothing else to do: from the beginning of the call that adds a job to its handler being called. */
  async idle(peer, count) {
    const times = [];
    const tally = new Tally(WARM_UP + count);
    let started;
    await peer.work((n) => {
      tally.mark(n);
      started();
    }, "idle");
    for (let n = 0; n < WARM_UP + count; n += 1) {
      const start = new Promise((resolve) => (started = () => resolve(now())));
      const began = now();
      const added = peer.add(n);
      times.push((await within(start, `job ${n}`)) - began);
      await added;
    }
    await peer.stop();
    tally.check();
    const measured = times.slice(WARM_UP).sort((a, b) => a - b);
    return { p50: round(percentile(measured, 0.5)), p99: round(percentile(measured, 0.99)) };
  },

  /** One key, added once, and then many times at once while its handler runs: how many runs? */
  async unique(peer) {
    let runs = 0;
    let last = now();
    let started;
    const running = new Promise((resolve) => (started = resolve));
    await peer.work(async () => {
      runs += 1;
      started();
      await sleep(200);
      last = now();
    }, "unique");
    await peer.addUnique("the-key");
    await within(running, "the first run");
    await Promise.all(Array.from({ length: UNIQUE_ADDS - 1 }, () => peer.addUnique("the-key")));
    await until(() => peer.settled(), "every run");
    // Longer than a poll, so that a late run is counted too.
    await until(() => now() - last > 1_000, "quiet");
    await peer.stop();
    if (runs < 1 || runs > UNIQUE_ADDS) fail(`${runs} runs of ${UNIQUE_ADDS} adds`);
    return { runs };
  },
};

const perSecond = (count, ms) => Math.round((count / ms) * 10_000) / 10;
const round = (ms) => Math.round(ms * 1_000) / 1_000;
const percentile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];

const peers = { bullmq, "graphile-worker": graphileWorker, "pg-boss": pgBoss };
const [peerName, mode, count] = process.argv.slice(2);
const n = Number(count ?? (mode === "unique" ? UNIQUE_ADDS : NaN));
if (!peers[peerName] || !modes[mode] || !(Number.isInteger(n) && n > 0)) {
  fail(`usage: node jobs.mjs ${Object.keys(peers).join("|")} ${Object.keys(modes).join("|")} N`);
}
try {
  const peer = await peers[peerName]();
  await peer.open(mode);
  const result = await modes[mode](peer, n);
  await peer.close();
  process.stdout.write(`${JSON.stringify({ peer: peerName, mode, n, ...result })}\n`);
  process.exit(0);
} catch (error) {
  broken(error);
}
