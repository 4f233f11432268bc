/** Executes the steps of one case with the client's own interface. */

import { setTimeout as pause } from "node:timers/promises";
import {
  type Answer,
  type Client,
  ConflictError,
  Content,
  type Delivery,
  derive,
  HapaxError,
  Held,
  type KeyInfo,
  type Message,
  newKey,
  type QueueConfig,
  type QueueInfo,
  type Settle,
  type Settled,
} from "../../src/index.js";
import type { TestBroker } from "../../src/testing.js";
import { at, type Fields, filled, type Json, mismatch } from "./match.js";
import { type Action, Workers } from "./workers.js";

export interface Case {
  name: string;
  queues: Record<string, QueueConfig>;
  steps: Fields[];
}

/** What a step may have besides the arguments of its operation. */
const OWN = ["op", "expect", "keep", "within_ms", "background"];

export async function run(broker: TestBroker, one: Case): Promise<void> {
  const runner = new Runner(broker);
  try {
    for (const [queue, config] of Object.entries(one.queues)) {
      await runner.client.queue(queue).admin.put(config);
    }
    for (const step of one.steps) {
      await runner.step(step);
    }
  } finally {
    await runner.end();
  }
}

class Runner {
  readonly client: Client;
  readonly #broker: TestBroker;
  readonly #variables = new Map<string, Json>();
  readonly #background = new Map<string, Promise<Json>>();
  readonly #claims = new Map<string, Held>();
  readonly #workers = new Workers();

  constructor(broker: TestBroker) {
    this.#broker = broker;
    this.client = broker.client();
  }

  async end(): Promise<void> {
    await this.#workers.end();
    for (const claim of this.#claims.values()) {
      claim.abandon();
    }
  }

  async step(raw: Fields): Promise<void> {
    const step = filled(raw, this.#variables) as Fields;
    if (typeof step.background === "string") {
      this.#background.set(step.background, this.#result(step));
      return;
    }
    const until = performance.now() + Number(step.within_ms ?? 0);
    for (;;) {
      const result = await this.#result(step);
      const wrong = "expect" in step ? mismatch(step.expect as Json, result) : undefined;
      if (wrong === undefined) {
        for (const [name, path] of Object.entries((step.keep ?? {}) as Fields)) {
          this.#variables.set(name, at(result, path as string));
        }
        return;
      }
      if (performance.now() >= until) {
        throw new Error(`${JSON.stringify(raw)}: ${wrong}\nof ${JSON.stringify(result)}`);
      }
      await pause(50);
    }
  }

  /** A refusal is a result too. */
  async #result(step: Fields): Promise<Json> {
    const own = new Set(OWN);
    const args = Object.fromEntries(Object.entries(step).filter(([name]) => !own.has(name)));
    const op = OPERATIONS[step.op as string];
    if (op === undefined) {
      throw new Error(`the runner does not know the operation ${step.op}`);
    }
    const seen = new Arguments(args);
    try {
      const result = await op.call(this.#tools, seen);
      seen.end(step.op as string);
      return JSON.parse(JSON.stringify(result ?? {})) as Json;
    } catch (error) {
      if (error instanceof HapaxError) {
        return refusal(error);
      }
      throw error;
    }
  }

  get #tools(): Tools {
    return {
      client: this.client,
      broker: this.#broker,
      claims: this.#claims,
      background: this.#background,
      workers: this.#workers,
    };
  }
}

interface Tools {
  client: Client;
  broker: TestBroker;
  claims: Map<string, Held>;
  background: Map<string, Promise<Json>>;
  workers: Workers;
}

/** The arguments of a step: each must be used, so that no field of a case is ignored. */
class Arguments {
  readonly #left: Map<string, Json>;

  constructor(fields: Fields) {
    this.#left = new Map(Object.entries(fields));
  }

  take<T = string | undefined>(name: string): T {
    const value = this.#left.get(name);
    this.#left.delete(name);
    return value as T;
  }

  end(op: string): void {
    if (this.#left.size > 0) {
      throw new Error(`the runner does not know these fields of ${op}: ${[...this.#left.keys()]}`);
    }
  }
}

type Operation = (this: Tools, step: Arguments) => unknown;

const queueOf = (tools: Tools, step: Arguments) => tools.client.queue(step.take<string>("queue"));
const ok = { answer: "ok" };

const OPERATIONS: Record<string, Operation> = {
  async send(step) {
    const queue = queueOf(this, step);
    const { body, ...options } = messageOf(step);
    const timeoutMs = step.take<number | undefined>("timeout_ms");
    const waitMs = step.take<number | undefined>("wait_ms");
    const send =
      waitMs === undefined
        ? queue.send(body, { ...options, timeoutMs })
        : queue.sendAndWait(body, { ...options, timeoutMs, waitMs });
    return answer(await send);
  },
  async send_all(step) {
    const queue = queueOf(this, step);
    const messages = step.take<Fields[]>("messages").map((message) => {
      const fields = new Arguments(message);
      const written = messageOf(fields);
      fields.end("a message");
      return written;
    });
    return { answers: (await queue.sendAll(messages)).map(answer) };
  },
  async send_many(step) {
    const queue = queueOf(this, step);
    const prefix = step.take<string>("prefix");
    const count = step.take<number>("count");
    let [next, answered, refused] = [0, 0, 0];
    const lane = async (): Promise<void> => {
      while (next < count) {
        const key = `${prefix}${next}`;
        next += 1;
        await queue.send(key, { key }).then(
          () => {
            answered += 1;
          },
          () => {
            refused += 1;
          },
        );
      }
    };
    await Promise.all(Array.from({ length: 8 }, lane));
    return { answered, refused };
  },
  async receive(step) {
    const deliveries = await queueOf(this, step).receive({
      max: step.take<number | undefined>("max"),
      waitMs: step.take<number | undefined>("wait_ms"),
      leaseMs: step.take<number | undefined>("lease_ms"),
      worker: step.take("worker"),
      receiveId: step.take("receive_id"),
    });
    return { messages: deliveries.map(delivered) };
  },
  async drain(step) {
    const queue = queueOf(this, step);
    const keys = new Set<string>();
    let messages = 0;
    for (;;) {
      const deliveries = await queue.receive({ max: 100, waitMs: 300 });
      if (deliveries.length === 0) {
        return { messages, distinct: keys.size };
      }
      messages += deliveries.length;
      for (const { key } of deliveries) {
        keys.add(key);
      }
      await queue.settle(deliveries.map(({ lease }) => ({ lease, do: "done" })));
    }
  },
  async done(step) {
    const result = step.take<Fields | undefined>("result");
    const emit = step.take<Settle["emit"]>("emit");
    return settle(this, step, {
      do: "done",
      ...(result === undefined ? {} : { result: result as NonNullable<Settle["result"]> }),
      ...(emit === undefined ? {} : { emit }),
    });
  },
  fail(step) {
    return failed(this, step, "fail");
  },
  park(step) {
    return failed(this, step, "park");
  },
  release(step) {
    return settle(this, step, { do: "release" });
  },
  begin(step) {
    return settle(this, step, { do: "begin" });
  },
  extend(step) {
    return settle(this, step, { do: "extend", lease_ms: step.take<number>("lease_ms") });
  },
  save(step) {
    const name = step.take<string>("name");
    return settle(this, step, { do: "save", name, ...contentOf(step).writeBody() });
  },
  async claim(step) {
    const queue = queueOf(this, step);
    const as = step.take("as");
    const key = step.take<string>("key");
    const body = step.take("body");
    const claim = await queue.claim(key, {
      body,
      fingerprint: step.take("fingerprint"),
      leaseMs: step.take<number | undefined>("lease_ms"),
      waitMs: step.take<number | undefined>("wait_ms"),
    });
    if (!(claim instanceof Held)) {
      return answer(claim);
    }
    if (as === undefined) {
      claim.abandon();
    } else {
      this.claims.set(as, claim);
    }
    const points = POINTS.map((name) => [name, claim.recoveryPoint(name)?.write()] as const);
    const saved = Object.fromEntries(points.filter(([, point]) => point !== undefined));
    return { answer: "fresh", fence: claim.fence, tenant: claim.tenant, recovery_points: saved };
  },
  drop_claim(step) {
    this.claims.get(step.take<string>("claim"))?.abandon();
  },
  is_lost(step) {
    return { lost: this.claims.get(step.take<string>("claim"))?.signal.aborted };
  },
  async look(step) {
    const queue = queueOf(this, step);
    const waitMs = step.take<number | undefined>("wait_ms");
    return looked(await queue.key(step.take<string>("key"), { group: step.take("group"), waitMs }));
  },
  async forget(step) {
    const { admin } = queueOf(this, step);
    await admin.forget(step.take<string>("key"), { group: step.take("group") });
    return ok;
  },
  async redrive(step) {
    const { admin } = queueOf(this, step);
    await admin.redriveKey(step.take<string>("key"), { group: step.take("group") });
    return ok;
  },
  async discard(step) {
    const { admin } = queueOf(this, step);
    await admin.discard(step.take<string>("key"), { group: step.take("group") });
    return ok;
  },
  async replay(step) {
    const { admin } = queueOf(this, step);
    const { key, ...message } = messageOf(step);
    await admin.replay(key as string, message);
    return ok;
  },
  async resolve(step) {
    const { admin } = queueOf(this, step);
    const key = step.take<string>("key");
    const verb = step.take<"done" | "retry">("do");
    const result = step.take<Fields | undefined>("result");
    const content = result === undefined ? {} : { result: Content.read(result) };
    await admin.resolve(key, verb === "done" ? { do: "done", ...content } : { do: "retry" });
    return ok;
  },
  async create_queue(step) {
    const { admin } = queueOf(this, step);
    return queueFields(await admin.put(step.take<QueueConfig>("config")));
  },
  async queue(step) {
    return queueFields(await queueOf(this, step).admin.get());
  },
  async delete_queue(step) {
    await queueOf(this, step).admin.delete();
    return ok;
  },
  async pause(step) {
    await queueOf(this, step).admin.pause();
    return ok;
  },
  async resume(step) {
    await queueOf(this, step).admin.resume();
    return ok;
  },
  async purge(step) {
    await queueOf(this, step).admin.purge();
    return ok;
  },
  derive(step) {
    const [queue, group, key] = ["queue", "group", "key"].map((name) => step.take<string>(name));
    const generation = step.take<number>("generation");
    const parent = { queue: queue as string, group, key: key as string, generation };
    return { key: derive(parent, step.take<string>("name")) };
  },
  new_key: () => ({ key: newKey() }),
  kill_broker() {
    return this.broker.kill().then(() => undefined);
  },
  start_broker() {
    return this.broker.start().then(() => undefined);
  },
  async wait(step) {
    await pause(step.take<number>("ms"));
  },
  join(step) {
    const name = step.take<string>("name");
    return this.background.get(name) ?? Promise.reject(new Error(`there is no step ${name}`));
  },
  start_worker(step) {
    const queue = queueOf(this, step);
    const name = step.take<string>("name");
    const options = {
      concurrency: step.take<number | undefined>("concurrency") ?? 4,
      leaseMs: step.take<number | undefined>("lease_ms"),
    };
    this.workers.start(queue, name, options, step.take<Action[][]>("handler"));
  },
  async stop_worker(step) {
    const drainMs = step.take<number | undefined>("drain_ms");
    await this.workers.stop(step.take<string>("name"), drainMs ?? 10_000);
  },
  worker_log(step) {
    return { attempts: this.workers.log(step.take<string>("name")) };
  },
  calls(step) {
    return { calls: this.workers.calls(step.take<string>("name")) };
  },
};

/** Names that cases save under, since a claim shows its recovery points one by one. */
const POINTS = ["charged", "p"];

function failed(tools: Tools, step: Arguments, verb: "fail" | "park"): Promise<unknown> {
  const delay = step.take<number | undefined>("delay_ms");
  const dead = step.take<boolean | undefined>("dead");
  return settle(tools, step, {
    do: verb,
    error: step.take<string>("error"),
    ...(delay === undefined ? {} : { delay_ms: delay }),
    ...(dead === undefined ? {} : { dead }),
  });
}

async function settle(tools: Tools, step: Arguments, what: Settle): Promise<unknown> {
  const claim = step.take("claim");
  const queue = queueOf(tools, step);
  if (claim !== undefined) {
    return settled(await (tools.claims.get(claim) as Held).settle(what));
  }
  const [answer] = await queue.settle([{ lease: step.take<string>("lease"), ...what }]);
  if (answer instanceof HapaxError) {
    throw answer;
  }
  return settled(answer as Settled);
}

function settled({ answer, state, result }: Settled): unknown {
  return { answer, state, result: result?.write() };
}

function contentOf(step: Arguments): Content {
  const wire = { body: step.take("body") ?? null, body_base64: step.take("body_base64") ?? null };
  return Content.read(wire);
}

function messageOf(step: Arguments): Message {
  const issued = step.take("issued_at");
  return {
    body: contentOf(step),
    key: step.take("key"),
    contentType: step.take("content_type"),
    group: step.take("group"),
    headers: step.take<Record<string, string> | undefined>("headers"),
    delayMs: step.take<number | undefined>("delay_ms"),
    ttlMs: step.take<number | undefined>("ttl_ms"),
    fingerprint: step.take("fingerprint"),
    issuedAt: issued === undefined ? undefined : new Date(issued),
  };
}

function answer(given: Answer | HapaxError): unknown {
  if (given instanceof HapaxError) {
    return refusal(given);
  }
  const { id, state, attempts, result, error } = given;
  return { answer: given.answer, id, state, attempts, result: result?.write(), error };
}

function refusal(error: HapaxError): Json {
  const { code, retryable, detail } = error;
  const differs = error instanceof ConflictError ? [...error.differs] : null;
  return { answer: "error", code, retryable, detail, differs };
}

function delivered(delivery: Delivery): unknown {
  const { lease, fence, tenant, queue, key, id, attempt, generation, group, headers } = delivery;
  const points = delivery.recoveryPoints.map((name) => [
    name,
    delivery.recoveryPoint(name)?.write(),
  ]);
  return {
    ...{ lease, fence, tenant, queue, key, id, attempt, generation, group, headers },
    ...delivery.content.write(),
    content_type: delivery.contentType,
    lease_ms: delivery.leaseMs,
    recovery_points: Object.fromEntries(points),
  };
}

function looked(info: KeyInfo): unknown {
  const { state, id, attempts, generation, duplicates, error, group } = info;
  const points = [...info.recoveryPoints].map(([name, point]) => [name, point.write()]);
  return {
    ...{ state, id, attempts, generation, duplicates, error, group },
    result: info.result?.write(),
    recovery_points: Object.fromEntries(points),
  };
}

function queueFields({ queue, config, stats, paused }: QueueInfo): unknown {
  return { queue, config, stats, paused };
}
