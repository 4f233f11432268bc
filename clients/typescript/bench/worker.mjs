// Messages per second of one worker, with 16 and 128 in flight: beside a bare loop over the same
// requests, and beside BullMQ on Redis with the same durability (every write is synced before it is
// confirmed). All in one run, in turns, in another order in every round, the median of each; ratios
// are those within a round, and their median. The messages are sent before; counted is from the first
// receive to the last confirmed settle. The CPU time is this process's, with compiling and collecting
// garbage: it tells more than the rate on a machine that others use too.
//
//   npm run build
//   HAPAX_BIN=… node bench/worker.mjs [--messages 20000] [--rounds 5] [--in-flight 16,128]
//
// BullMQ needs a redis-server in the PATH (or REDIS_SERVER), and `npm install --no-save bullmq
// ioredis`, or its module named by BULLMQ; without them it is left out.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Worker } from "hapax";
import { TestBroker } from "hapax/testing";

const { values } = parseArgs({
  options: {
    messages: { type: "string", default: "20000" },
    rounds: { type: "string", default: "5" },
    "in-flight": { type: "string", default: "16,128" },
  },
});
const messages = Number(values.messages);
const rounds = Number(values.rounds);
const body = "x".repeat(100);
const handler = async () => "ok";
setFlagsFromString("--expose-gc");
/** @type {() => void} */
const collect = runInNewContext("gc");

/** @type {(() => Promise<void> | void)[]} */
const closing = [];

/** @param {number[]} list */
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)] ?? 0;

const broker = await TestBroker.start();
closing.push(() => broker.stop());
let runs = 0;
let requests = 0;

/** @type {import("hapax").Fetch} */
const counted = (url, init) => {
  requests += 1;
  return fetch(url, init);
};

/** @typedef {{ rate: number, cpu: number, requests: number }} Measured */

/**
 * Measures the work on messages that wait.
 * @param {() => Promise<void>} work
 * @returns {Promise<Measured>}
 */
async function measured(work) {
  requests = 0;
  // What the sends have left is no part of the work.
  collect();
  const cpu = process.cpuUsage();
  const begun = performance.now();
  await work();
  const taken = performance.now() - begun;
  const { user, system } = process.cpuUsage(cpu);
  return {
    rate: (messages / taken) * 1_000,
    cpu: (user + system) / messages,
    requests: (requests / messages) * 1_000,
  };
}

/** A queue with messages. */
async function filled() {
  runs += 1;
  const queue = broker.client({ fetch: counted }).queue(`bench-${runs}`);
  await queue.admin.put({ lease_ms: 60_000 });
  const list = Array.from({ length: messages }, (_, n) => ({ key: `k${n}`, body }));
  await queue.sendAll(list);
  return queue;
}

/** @param {number} inFlight */
async function ofWorker(inFlight) {
  const queue = await filled();
  let done = 0;
  const worker = new Worker(queue, handler, {
    concurrency: inFlight,
    prefetch: 0,
    observe: (event) => {
      if (event.type === "settled") {
        done += 1;
        if (done === messages) {
          worker.stop();
        }
      }
    },
  });
  return measured(() => worker.run());
}

/**
 * The same requests without the client: loops that share what may be in flight, and each receive and
 * settle in turns, so that one waits for messages while another settles.
 * @param {number} inFlight
 * @param {number} lanes
 * @param {(() => Promise<string>) | undefined} handle What is called for every message, if anything.
 */
async function ofLoop(inFlight, lanes, handle) {
  const queue = await filled();
  /**
   * @param {string} verb
   * @param {object} json
   */
  const post = async (verb, json) => {
    const reply = await counted(`${broker.url}/v1/queues/${queue.name}/${verb}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(json),
    });
    return /** @type {any} */ (await reply.json());
  };
  let left = messages;
  const lane = async () => {
    while (left > 0) {
      const received = await post("receive", {
        max: inFlight / lanes,
        wait_ms: 100,
        lease_ms: 60_000,
      });
      const results = handle ? await Promise.all(received.messages.map(handle)) : [];
      const items = received.messages.map(
        (/** @type {{ lease: string }} */ { lease }, /** @type {number} */ index) => ({
          lease,
          do: "done",
          result: { body: results[index] ?? "ok" },
        }),
      );
      if (items.length > 0) {
        const { answers } = await post("settle", { items });
        left -= answers.filter((/** @type {any} */ { answer }) => answer === "ok").length;
      }
    }
  };
  return measured(async () => {
    await Promise.all(Array.from({ length: lanes }, lane));
  });
}

/** BullMQ on a Redis of its own, or nothing where they are not here. */
async function bull() {
  const program = process.env.REDIS_SERVER ?? "redis-server";
  // A name that is not resolved when this file is checked: it is no dependency.
  const name = process.env.BULLMQ ?? "bullmq";
  const bullmq = await import(name).catch((error) => {
    console.log(`BullMQ is left out (npm install --no-save bullmq ioredis): ${error.message}`);
  });
  if (bullmq === undefined) {
    return undefined;
  }
  const directory = mkdtempSync(join(tmpdir(), "hapax-redis-"));
  const port = await new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
      server.close(() => resolve(port));
    });
  });
  const args = ["--port", String(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""];
  const durable = ["--appendonly", "yes", "--appendfsync", "always"];
  const redis = spawn(program, [...args, ...durable], { stdio: "ignore" });
  const ended = new Promise((resolve) => {
    redis.once("exit", resolve);
    redis.once("error", resolve);
  });
  closing.push(async () => {
    redis.kill("SIGKILL");
    await ended;
    rmSync(directory, { recursive: true, force: true });
  });
  const started = await new Promise((resolve) => {
    redis.once("error", () => resolve(false));
    setTimeout(() => resolve(true), 1_000);
  });
  if (!started) {
    console.log("BullMQ is left out: there is no redis-server");
    return undefined;
  }
  const connection = { host: "127.0.0.1", port };
  /** @param {number} inFlight */
  return async (inFlight) => {
    runs += 1;
    const queue = new bullmq.Queue(`bench-${runs}`, { connection });
    for (let n = 0; n < messages; n += 1_000) {
      const count = Math.min(1_000, messages - n);
      const jobs = Array.from({ length: count }, (_, i) => ({
        name: "job",
        data: { body },
        opts: { jobId: `k${n + i}` },
      }));
      await queue.addBulk(jobs);
    }
    let done = 0;
    const options = { connection, concurrency: inFlight, autorun: false };
    const worker = new bullmq.Worker(queue.name, handler, options);
    await worker.waitUntilReady();
    const rate = await measured(async () => {
      const all = new Promise((resolve) => {
        worker.on("completed", () => {
          done += 1;
          if (done === messages) {
            resolve(undefined);
          }
        });
      });
      worker.run().catch(() => undefined);
      await all;
    });
    await worker.close();
    await queue.close();
    return rate;
  };
}

try {
  const ofBull = await bull();
  /** @type {[string, (inFlight: number) => Promise<Measured>][]} */
  const kinds = [
    ["bare loop", (inFlight) => ofLoop(inFlight, 1, undefined)],
    ["bare loop with handlers", (inFlight) => ofLoop(inFlight, 1, handler)],
    ["bare loop, 2 lanes", (inFlight) => ofLoop(inFlight, 2, undefined)],
    ["hapax worker", ofWorker],
  ];
  if (ofBull !== undefined) {
    kinds.push(["BullMQ, appendfsync always", ofBull]);
  }
  for (const inFlight of values["in-flight"].split(",").map(Number)) {
    /** @type {Map<string, Measured[]>} */
    const all = new Map(kinds.map(([name]) => [name, []]));
    for (let round = 0; round <= rounds; round += 1) {
      const first = round % kinds.length;
      for (const [name, run] of [...kinds.slice(first), ...kinds.slice(0, first)]) {
        const one = await run(inFlight);
        // The first round warms up.
        if (round > 0) {
          all.get(name)?.push(one);
        }
      }
    }
    const bare = all.get("bare loop") ?? [];
    for (const [name, list] of all) {
      /** @param {keyof Measured} what */
      const of = (what) => median(list.map((one) => one[what]));
      /** @param {"rate" | "cpu"} what */
      const ratio = (what) =>
        median(list.map((one, round) => one[what] / (bare[round]?.[what] ?? Number.NaN))).toFixed(
          2,
        );
      const each = list.map((one) => `${Math.round(one.rate)}/${Math.round(one.cpu)}`).join(" ");
      console.log(
        `${inFlight} in flight  ${name}: ${Math.round(of("rate"))}/s (${ratio("rate")}), ` +
          `${of("cpu").toFixed(1)} µs of CPU each (${ratio("cpu")}), ` +
          `${Math.round(of("requests"))} requests per 1,000; ${each}`,
      );
    }
  }
} finally {
  for (const close of closing.reverse()) {
    await close();
  }
}
