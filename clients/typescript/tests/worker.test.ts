/** Workers beyond the conformance suite: stops, blocked loops, brokers that stall, bad neighbours. */

import { expect, test, vi } from "vitest";
import {
  type Context,
  type Delivery,
  type Handler,
  type Held,
  NoSuchQueueError,
  type QueueConfig,
  Worker,
  type WorkerEvent,
  type WorkerOptions,
} from "../src/index.js";
import { useBroker } from "../src/vitest.js";
import { pretend } from "./support/pretend.js";
import { until } from "./support/wait.js";

const hapax = useBroker();
let queues = 0;

async function queue(config: QueueConfig = {}) {
  queues += 1;
  const made = hapax.client().queue(`worker-${queues}`);
  await made.admin.put({ backoff_min_ms: 1, backoff_max_ms: 20, ...config });
  return made;
}

/** Runs a worker while something else happens. */
async function working<T>(
  orders: Awaited<ReturnType<typeof queue>>,
  handler: Handler,
  options: WorkerOptions,
  then: (worker: Worker, events: WorkerEvent[]) => Promise<T>,
): Promise<T> {
  const events: WorkerEvent[] = [];
  const observe = (event: WorkerEvent): void => void events.push(event);
  const worker = new Worker(orders, handler, { observe, ...options });
  const running = worker.run();
  try {
    return await then(worker, events);
  } finally {
    worker.stop();
    await running;
  }
}

test("many messages are handled as many at a time as allowed", async () => {
  const orders = await queue({ lease_ms: 600_000 });
  await orders.sendAll(Array.from({ length: 200 }, (_, n) => ({ key: `k${n}`, body: String(n) })));
  let [now, most, sum] = [0, 0, 0];
  const handler = async (message: Delivery): Promise<void> => {
    now += 1;
    most = Math.max(most, now);
    sum += Number(message.text);
    await new Promise((resolve) => setTimeout(resolve, 1));
    now -= 1;
  };
  await working(orders, handler, { concurrency: 8 }, async (worker) => {
    await until("all", async () => (await orders.admin.get()).stats.done_total === 200);
    await until("its health", () => !worker.health().isAway);
    expect(worker.health()).toMatchObject({ state: "working" });
  });
  expect([most, sum]).toEqual([8, (199 * 200) / 2]);
});

test("a worker on a queue that does not exist ends with that error", async () => {
  const nowhere = hapax.client().queue("nowhere");
  await expect(new Worker(nowhere, () => undefined).run()).rejects.toBeInstanceOf(NoSuchQueueError);
});

test("a stop is at once where nothing runs, also by a signal, and leaves nothing leased", async () => {
  const orders = await queue({ lease_ms: 60_000 });
  const controller = new AbortController();
  const worker = new Worker(orders, () => undefined);
  const running = worker.run({ signal: controller.signal });
  await expect(worker.run()).rejects.toThrow("running already");
  await until("the first receive", () => worker.health().state === "working");
  const begun = performance.now();
  controller.abort();
  await running;
  expect(performance.now() - begun).toBeLessThan(15_000);
  expect(worker.health().state).toBe("stopped");
  await orders.send("x", { key: "a" });
  const [delivery] = await orders.receive({ max: 1, waitMs: 20_000 });
  expect(delivery?.attempt).toBe(1);
});

test("a drain ends although its timer fires before its time", async () => {
  const orders = await queue({ lease_ms: 600_000 });
  await orders.send("x", { key: "a" });
  let begun = false;
  const worker = new Worker(orders, () => {
    begun = true;
    return new Promise<void>(() => undefined);
  });
  const running = worker.run();
  await until("the handler", () => begun);
  // Timers count by another clock than the worker reads, here by one that is twice as fast.
  const [clock, at] = [performance.now.bind(performance), performance.now()];
  const slow = vi.spyOn(performance, "now").mockImplementation(() => at + (clock() - at) / 2);
  try {
    worker.stop({ drainMs: 200 });
    await running;
  } finally {
    slow.mockRestore();
  }
  const [delivery] = await orders.receive({ waitMs: 60_000 });
  expect(delivery).toMatchObject({ key: "a", attempt: 2 });
});

test("a handler that blocks the event loop past its lease has lost it", async () => {
  const orders = await queue({ lease_ms: 500, max_attempts: 1_000 });
  await orders.send("x", { key: "a" });
  const seen: number[] = [];
  const handler = async (message: Delivery, context: Context): Promise<string> => {
    // Not by the attempt: a machine that stalls may lose the first before its handler begins.
    seen.push(message.attempt);
    if (seen.length === 1) {
      const end = performance.now() + 1_500;
      while (performance.now() < end) {
        // Blocked, as by a long computation.
      }
      await context.save("p", "late").catch(() => undefined);
      throw new Error(context.isLost ? "not reported" : "still mine");
    }
    return "second";
  };
  const answer = await working(orders, handler, {}, () =>
    orders.sendAndWait("x", { key: "a", waitMs: 120_000 }),
  );
  expect(answer.answer).toBe("done");
  expect(answer.result?.text).toBe("second");
  expect(seen.length).toBeGreaterThanOrEqual(2);
});

test("a step ends when the lease is lost, whatever its call does", async () => {
  const orders = await queue({ lease_ms: 1_000, max_attempts: 1_000 });
  await orders.send("x", { key: "a" });
  const codes: unknown[] = [];
  let calls = 0;
  const handler = async (_message: Delivery, context: Context): Promise<void> => {
    calls += 1;
    if (calls > 1) {
      return;
    }
    hapax.broker.suspend();
    try {
      await context.step("charge", () => new Promise(() => undefined));
    } catch (error) {
      codes.push((error as { code?: string }).code);
      throw error;
    } finally {
      hapax.broker.resume();
    }
  };
  await working(orders, handler, {}, async (_worker, events) => {
    await until("the loss", () => codes.length === 1);
    await until("its event", () => events.some((event) => event.type === "lost"));
    expect((await orders.key("a", { waitMs: 120_000 })).state).toBe("done");
  });
  expect(codes).toEqual(["lease_lost"]);
});

test("a result that is refused harms no neighbour", async () => {
  const orders = await queue({ max_body_bytes: 64 });
  await orders.sendAll(Array.from({ length: 20 }, (_, n) => ({ key: `k${n}`, body: "x" })));
  let left = 20;
  let open = (): void => undefined;
  const all = new Promise<void>((resolve) => {
    open = resolve;
  });
  const handler = async (message: Delivery): Promise<unknown> => {
    left -= 1;
    if (left === 0) {
      open();
    }
    await all;
    if (message.key === "k7") {
      return "x".repeat(65);
    }
    return message.key === "k8" ? { n: 10n } : message.key;
  };
  await working(orders, handler as Handler, { concurrency: 20 }, async () => {
    await until("all", async () => {
      const { stats } = await orders.admin.get();
      return stats.done_total + stats.dead === 20;
    });
  });
  expect((await orders.key("k7")).error).toContain("refused");
  expect((await orders.key("k8")).error).toContain("JSON");
  expect((await orders.admin.get()).stats.dead).toBe(2);
});

test("a worker tells that the broker is away and back, and goes on", async () => {
  const orders = await queue();
  const handler = (message: Delivery): string => message.text;
  await working(orders, handler, {}, async (worker, events) => {
    await hapax.broker.kill();
    await until("away", () => worker.health().isAway);
    await hapax.broker.start();
    const answer = await orders.sendAndWait("hello", { key: "a", waitMs: 120_000 });
    expect(answer.result?.text).toBe("hello");
    await until("back", () => events.some((event) => event.type === "back"));
    await until("its health", () => !worker.health().isAway);
  });
});

test("answers that are lost on the way cost no message and no second effect", async () => {
  const name = (await queue({ lease_ms: 120_000 })).name;
  const lost = new Map<string, number>();
  // Forwards every request, and loses the first two answers of each kind.
  const client = await pretend(async ({ request, response, path, body }) => {
    const { method = "GET", headers } = request;
    const type = headers["content-type"];
    const kept: Record<string, string> = type === undefined ? {} : { "content-type": type };
    for (const [key, value] of Object.entries(headers)) {
      if (/^(hapax|idempotency)-/.test(key)) {
        kept[key] = String(value);
      }
    }
    const init = { method, headers: kept, ...(method === "GET" ? {} : { body }) };
    const reply = await fetch(`${hapax.broker.url}${path}`, init).catch(() => undefined);
    if (reply === undefined) {
      response.destroy();
      return;
    }
    const text = await reply.text();
    const kind = path.split(/[?/]/).at(4) ?? path;
    const isEmpty = kind === "receive" && text === '{"messages":[]}';
    const count = lost.get(kind) ?? 0;
    if (count < 2 && !isEmpty) {
      lost.set(kind, count + 1);
      response.destroy();
      return;
    }
    response.writeHead(reply.status, { "content-type": reply.headers.get("content-type") ?? "" });
    response.end(text);
  });
  const orders = client.queue(name);
  const effects: string[] = [];
  const handler = async (message: Delivery, context: Context): Promise<string> => {
    await context.save("seen", message.text);
    effects.push(message.key);
    return message.text;
  };
  await working(orders, handler, {}, async () => {
    const answers = await Promise.all(
      ["a", "b", "c"].map((key) => orders.sendAndWait(key, { key, waitMs: 120_000 })),
    );
    expect(answers.map(({ answer, result }) => [answer, result?.text])).toEqual([
      ["done", "a"],
      ["done", "b"],
      ["done", "c"],
    ]);
    expect(answers.map(({ attempts }) => attempts)).toEqual([1, 1, 1]);
  });
  expect(effects.sort()).toEqual(["a", "b", "c"]);
  expect(lost.get("batch")).toBe(2);
  expect(lost.get("receive")).toBe(2);
  expect(lost.get("settle")).toBe(2);
  const claim = await orders.claim("d", { leaseMs: 120_000 });
  expect([claim.answer, lost.get("claims")]).toEqual(["fresh", 2]);
  await (claim as Held).complete("once");
  expect((await orders.key("d")).result?.text).toBe("once");
});
