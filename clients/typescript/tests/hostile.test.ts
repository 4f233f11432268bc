/**
 * What nobody should send, throw or return: answers that no broker writes, times that make no sense,
 * texts that are not Unicode, handlers that throw anything. None needs a broker.
 */

import { expect, test } from "vitest";
import {
  Answer,
  Client,
  Failure,
  type Handler,
  type HapaxError,
  InvalidError,
  MalformedKeyError,
  type Message,
  UnavailableError,
  Worker,
  type WorkerEvent,
} from "../src/index.js";
import { type Asked, delivered, pretend } from "./support/pretend.js";
import { until } from "./support/wait.js";

const caught = (promise: Promise<unknown>): Promise<HapaxError> =>
  promise.then(
    (value) => Promise.reject(new Error(`answered ${JSON.stringify(value)}`)),
    (error: HapaxError) => error,
  );

const page = ({ response }: Asked): void => {
  response.writeHead(200, { "content-type": "text/html" });
  response.end("<html>Sign in</html>");
};

/** Successes that no broker writes. */
const NONSENSE: [string, (asked: Asked) => void][] = [
  ["a page of a proxy", page],
  ["nothing", ({ response }) => response.writeHead(200).end()],
  ["no content", ({ response }) => response.writeHead(204).end()],
  ["empty JSON", ({ response }) => void response.writeHead(200, JSON_TYPE).end()],
  ["half of a JSON text", ({ response }) => void response.writeHead(200, JSON_TYPE).end('{"ans')],
  ["null", ({ reply }) => reply(null)],
  ["a list", ({ reply }) => reply([])],
  ["a text", ({ reply }) => reply("ok")],
  ["another object", ({ reply }) => reply({ ok: true })],
  ["lists of nothing", ({ reply }) => reply({ answers: [null], messages: [null], queues: [7] })],
  ["no lists", ({ reply }) => reply({ answers: {}, messages: "", queues: 7 })],
  ["unknown kinds", ({ reply }) => reply({ answer: "maybe", answers: [{ answer: "maybe" }] })],
];
const JSON_TYPE = { "content-type": "application/json" };

test.each(NONSENSE)(
  "a success that is %s is no answer: it is unknown, and retried",
  async (_, answer) => {
    const client = await pretend(answer);
    const queue = client.queue("q");
    const options = { timeoutMs: 60 };
    const calls: [string, () => Promise<unknown>][] = [
      ["send", () => queue.send("x", { key: "k", ...options })],
      ["large", () => queue.send(new Uint8Array(1024 * 1024), { key: "k", ...options })],
      ["claim", () => queue.claim("k", options)],
      ["key", () => queue.key("k", options)],
      ["receive", () => queue.receive(options)],
      ["get", () => queue.admin.get(options)],
      ["put", () => queue.admin.put({}, options)],
      ["queues", () => client.queues(options)],
      ["pause", () => queue.admin.pause(options)],
      ["browse", () => queue.admin.browse("dead", options).next()],
    ];
    for (const [name, call] of calls) {
      const error = await caught(call());
      expect(error, name).toBeInstanceOf(UnavailableError);
      expect(error.retryable, name).toBe(true);
    }
    const settled = await queue.settle([{ lease: "l", do: "done" }], options).catch((it) => [it]);
    expect(settled[0]).toBeInstanceOf(UnavailableError);
  },
);

test("a page in the place of an answer is retried until the broker is back", async () => {
  let calls = 0;
  const client = await pretend((asked) => {
    calls += 1;
    if (calls < 3) {
      page(asked);
    } else {
      asked.reply({ answers: [{ answer: "accepted", key: "k", id: "1", state: "ready" }] });
    }
  });
  expect((await client.queue("q").send("x", { key: "k" })).isNew).toBe(true);
  expect(calls).toBe(3);
});

test("a result is not given up because a proxy answered its settle", async () => {
  const settles: string[] = [];
  const client = await pretend((asked) => {
    if (asked.path.endsWith("/receive")) {
      asked.reply({ messages: settles.length === 0 ? [delivered("k")] : [] });
      return;
    }
    settles.push(JSON.parse(asked.body).items[0].do);
    if (settles.length === 1) {
      page(asked);
    } else if (settles.length === 2) {
      asked.reply({ answers: [] });
    } else if (settles.length === 3) {
      asked.response.writeHead(403, { "content-type": "text/html" }).end("<html>Blocked</html>");
    } else {
      asked.reply({ answers: [{ answer: "ok" }] });
    }
  });
  const events: WorkerEvent[] = [];
  const worker = new Worker(client.queue("q"), () => "charged", {
    observe: (event) => events.push(event),
  });
  const running = worker.run();
  await until("the settle", () => events.some((event) => event.type === "settled"));
  worker.stop();
  await running;
  expect(settles).toEqual(["done", "done", "done", "done"]);
});

/** A proxy whose broker restarts, or whose rules are being changed. */
const refuse = ({ response }: Asked, status: number): void => {
  response.writeHead(status, { "content-type": "text/html" }).end("<html>No</html>");
};

test("a worker that has reached its broker outlives the refusals of a proxy", async () => {
  const statuses = [401, 403, 404, 405, 425];
  let receives = 0;
  const client = await pretend((asked) => {
    if (!asked.path.endsWith("/receive")) {
      asked.reply({ answers: [{ answer: "ok" }] });
      return;
    }
    receives += 1;
    const status = receives > 1 ? statuses.shift() : undefined;
    if (status === undefined) {
      asked.reply({ messages: receives === 1 ? [] : [delivered("k")] });
    } else {
      refuse(asked, status);
    }
  });
  const events: WorkerEvent[] = [];
  const worker = new Worker(client.queue("q"), () => "charged", {
    observe: (event) => {
      events.push(event);
      if (event.type === "settled") {
        worker.stop();
      }
    },
  });
  await worker.run();
  expect(events.map(({ type }) => type).slice(0, 3)).toEqual(["away", "back", "settled"]);
  expect(statuses).toEqual([]);
});

test("a worker that a proxy refuses from the beginning ends: the address is wrong", async () => {
  const client = await pretend((asked) => refuse(asked, 404));
  const error = await caught(new Worker(client.queue("q"), () => undefined).run());
  expect(error).toBeInstanceOf(InvalidError);
  expect(error.isForeign).toBe(true);
});

test("a recovery point is not given up because a proxy refused it", async () => {
  const settles: string[] = [];
  const client = await pretend((asked) => {
    if (asked.path.endsWith("/receive")) {
      asked.reply({ messages: settles.length === 0 ? [delivered("k")] : [] });
      return;
    }
    settles.push(JSON.parse(asked.body).items[0].do);
    if (settles.length === 1) {
      refuse(asked, 403);
    } else {
      asked.reply({ answers: [{ answer: "ok" }] });
    }
  });
  const worker = new Worker(client.queue("q"), (_, context) => context.save("paid", "17"), {
    observe: ({ type }) => type === "settled" && worker.stop(),
  });
  await worker.run();
  expect(settles).toEqual(["save", "save", "done"]);
});

test("a settle that is too large for a proxy harms no other, and is not sent for ever", async () => {
  const settled = new Map<string, string>();
  let isReceived = false;
  const client = await pretend((asked) => {
    if (asked.path.endsWith("/receive")) {
      asked.reply({ messages: isReceived ? [] : ["a", "b", "c"].map((key) => delivered(key)) });
      isReceived = true;
    } else if (asked.body.length > 10_000) {
      refuse(asked, 413);
    } else {
      const { items } = JSON.parse(asked.body);
      for (const item of items) {
        settled.set(item.lease, item.do);
      }
      asked.reply({ answers: items.map(() => ({ answer: "ok" })) });
    }
  });
  let done = 0;
  const handler: Handler = ({ key }) => (key === "b" ? "x".repeat(10_000) : "ok");
  const worker = new Worker(client.queue("q"), handler, {
    observe: ({ type }) => {
      done += type === "settled" ? 1 : 0;
      if (done === 3) {
        worker.stop();
      }
    },
  });
  await worker.run();
  expect(Object.fromEntries(settled)).toEqual({
    "lease-a": "done",
    "lease-b": "park",
    "lease-c": "done",
  });
});

const WAITS: [string, object, Record<string, string>][] = [
  ["a negative number", { retry_after_ms: -1_000_000 }, {}],
  ["a text", { retry_after_ms: "soon" }, {}],
  ["a list", { retry_after_ms: [] }, {}],
  ["a negative header", {}, { "retry-after": "-5" }],
  ["a header that is no number", {}, { "retry-after": "NaN" }],
  ["a header of two", {}, { "retry-after": "1, 2" }],
  ["a date that is none", {}, { "retry-after": "Fri, 99 Foo 2026 99:99:99 GMT" }],
];

test.each(WAITS)("a time to wait that is %s is not believed", async (_, body, headers) => {
  let [calls, refusals] = [0, 2];
  const client = await pretend(({ reply }) => {
    calls += 1;
    if (calls <= refusals) {
      reply({ code: "unavailable", retryable: true, ...body }, 503, headers);
    } else {
      reply({ answers: [{ answer: "accepted", key: "k", id: "1", state: "ready" }] });
    }
  });
  // A wait past the timeout would be an error at once.
  expect((await client.queue("q").send("x", { key: "k" })).isNew).toBe(true);
  expect(calls).toBe(3);
  [calls, refusals] = [0, Number.POSITIVE_INFINITY];
  const error = await caught(client.queue("q").send("x", { key: "k", timeoutMs: 300 }));
  expect(error).toBeInstanceOf(UnavailableError);
  expect(error.retryAfterMs).toBe(undefined);
  expect(calls).toBeLessThan(30);
});

test("a worker that is told to wait for years does not ask all the time, and stops", async () => {
  let settles = 0;
  const client = await pretend(({ path, reply }) => {
    if (path.endsWith("/receive")) {
      reply({ messages: settles === 0 ? [delivered("k")] : [] });
      return;
    }
    settles += 1;
    const retry_after_ms = 2 ** 31 + 5_000; // More than a timer takes.
    reply({ code: "unavailable", retryable: true, retry_after_ms }, 503);
  });
  const worker = new Worker(client.queue("q"), () => "x", { drainMs: 0 });
  const running = worker.run();
  await until("a settle", () => settles > 0);
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(settles).toBe(1);
  worker.stop();
  await running;
});

test("problems with fields of other kinds are still errors of their code", async () => {
  const client = await pretend(({ reply }) =>
    reply({ code: "conflict", detail: { a: 1 }, differs: "body", id: 7, accepted_at: 7 }, 422),
  );
  const error = await caught(client.queue("q").send("x", { key: "k" }));
  expect([error.code, error.status]).toEqual(["conflict", 422]);
  const numbers = await pretend(({ reply }) => reply({ code: 7, detail: 7 }, 400));
  expect((await caught(numbers.queue("q").send("x", { key: "k" }))).code).toBe("invalid");
});

test("times that are not numbers are refused before anything is sent", async () => {
  let calls = 0;
  const client = await pretend(({ reply }) => {
    calls += 1;
    reply({ code: "unavailable", retryable: true }, 503);
  });
  const queue = client.queue("q");
  for (const ms of [Number.NaN, -1, "5" as unknown as number]) {
    expect(() => new Client(client.url, { timeoutMs: ms })).toThrow(InvalidError);
    for (const call of [
      () => queue.send("x", { key: "k", timeoutMs: ms }),
      () => queue.sendAndWait("x", { key: "k", waitMs: ms }),
      () => queue.key("k", { waitMs: ms }),
      () => queue.key("k", { timeoutMs: ms }),
      () => queue.claim("k", { leaseMs: ms }),
      () => queue.claim("k", { timeoutMs: ms }),
      () => queue.receive({ waitMs: ms }),
      () => queue.receive({ timeoutMs: ms }),
      () => queue.admin.get({ timeoutMs: ms }),
    ]) {
      expect(await caught(call())).toBeInstanceOf(InvalidError);
    }
    for (const options of [
      { leaseMs: ms },
      { drainMs: ms },
      { concurrency: ms },
      { prefetch: ms },
    ]) {
      expect(() => new Worker(queue, () => undefined, options)).toThrow(InvalidError);
    }
  }
  expect(() => new Worker(queue, () => undefined, { concurrency: 1.5 })).toThrow(InvalidError);
  expect(() => new Worker(queue, () => undefined, { concurrency: 0 })).toThrow(InvalidError);
  expect(calls).toBe(0);
});

test("texts that are not Unicode are refused where they are names", async () => {
  let calls = 0;
  const client = await pretend(({ reply }) => {
    calls += 1;
    reply({ answers: [] });
  });
  const queue = client.queue("q");
  const lone = "order-\ud800";
  for (const body of ["small", new Uint8Array(1024 * 1024)]) {
    expect(await caught(queue.send(body, { key: lone }))).toBeInstanceOf(MalformedKeyError);
    for (const more of [{ group: lone }, { fingerprint: lone }, { headers: { a: lone } }]) {
      expect(await caught(queue.send(body, { key: "k", ...more }))).toBeInstanceOf(InvalidError);
    }
  }
  expect(await caught(queue.claim(lone))).toBeInstanceOf(MalformedKeyError);
  expect(await caught(queue.claim("k", { group: lone }))).toBeInstanceOf(InvalidError);
  for (const key of [lone, "", "a\nb", "x".repeat(256)]) {
    expect(await caught(queue.key(key))).toBeInstanceOf(MalformedKeyError);
    expect(await caught(queue.admin.discard(key))).toBeInstanceOf(MalformedKeyError);
  }
  // A URL takes these for steps in its path, however they are encoded.
  for (const key of [".", ".."]) {
    expect(await caught(queue.key(key))).toBeInstanceOf(InvalidError);
    expect(await caught(queue.admin.redriveKey(key))).toBeInstanceOf(InvalidError);
    expect(() => client.queue(key)).toThrow(InvalidError);
  }
  expect(() => client.queue("\ud800")).toThrow(InvalidError);
  expect(calls).toBe(0);
});

test("what a header cannot hold is refused at once, and not retried", async () => {
  let calls = 0;
  const client = await pretend(({ reply }) => {
    calls += 1;
    reply({ answers: [] });
  });
  const large = new Uint8Array(1024 * 1024);
  const queue = client.queue("q");
  const named = queue.send(large, { key: "k", headers: { "a b": "c" } });
  expect(await caught(named)).toBeInstanceOf(InvalidError);
  expect(await caught(queue.claim("k", { headers: { "a b": "c" } }))).toBeInstanceOf(InvalidError);
  expect(() => new Client(client.url, { token: "a\nb" })).toThrow(TypeError);
  expect(() => new Client(client.url, { token: "→" })).toThrow(TypeError);
  expect(() => new Client("http://me:secret@127.0.0.1:1")).toThrow(/^(?!.*secret).*$/s);
  expect(() => new Client("http://127.0.0.1:1/?a=b")).toThrow(TypeError);
  expect(calls).toBe(0);
});

test("one message that cannot be written harms no other of its list", async () => {
  const client = await pretend(({ body, reply }) => {
    const { messages } = JSON.parse(body) as { messages: { key: string }[] };
    reply({ answers: messages.map(({ key }) => ({ answer: "accepted", key, id: key })) });
  });
  const circle: Record<string, unknown> = {};
  circle.self = circle;
  const messages = [
    { key: "a", body: "1" },
    { key: "b", body: circle },
    { key: "c", body: { n: 1n } },
    { key: "d", body: "1", issuedAt: new Date(Number.NaN) },
    { key: "e", body: "1", delayMs: Number.NaN },
    { key: "\ud800", body: "1" },
    { key: "f", body: undefined },
    { key: "g", body: "2" },
  ] as Message[];
  const answers = await client.queue("q").sendAll(messages);
  const codes = answers.map((it) => (it instanceof Answer ? it.key : it.code));
  const invalid = Array.from({ length: 4 }, () => "invalid");
  expect(codes).toEqual(["a", ...invalid, "malformed_key", "invalid", "g"]);
});

test("a batch is never larger than a broker takes, whatever its bodies are", async () => {
  const sizes: number[] = [];
  let count = 0;
  const client = await pretend(({ body, path, reply }) => {
    sizes.push(Buffer.byteLength(body));
    expect(path).toBe("/v1/queues/q/batch");
    const { messages } = JSON.parse(body) as { messages: { key: string }[] };
    count += messages.length;
    expect(messages.length).toBeLessThanOrEqual(1_000);
    reply({ answers: messages.map(({ key }) => ({ answer: "accepted", key, id: key })) });
  });
  const kinds = ["\u0001", '"', "ä", "x", "\u{1f600}"];
  const messages = Array.from({ length: 60 }, (_, n) => ({
    key: `k${n}`,
    body: (kinds[n % kinds.length] ?? "x").repeat(100_000),
  }));
  const answers = await client.queue("q").sendAll(messages);
  expect(answers.every((answer) => answer instanceof Answer)).toBe(true);
  expect(count).toBe(60);
  expect(Math.max(...sizes)).toBeLessThanOrEqual(8 * 1024 * 1024);
});

test("a batch that something on the way finds too large is sent in smaller ones", async () => {
  let count = 0;
  const client = await pretend(({ body, reply, response }) => {
    if (body.length > 5_000) {
      response.writeHead(413, { "content-type": "text/html" }).end("<html>too large</html>");
      return;
    }
    const { messages } = JSON.parse(body) as { messages: { key: string }[] };
    count += messages.length;
    reply({ answers: messages.map(({ key }) => ({ answer: "accepted", key, id: key })) });
  });
  const messages = Array.from({ length: 40 }, (_, n) => ({
    key: `k${n}`,
    body: "x".repeat(n === 7 ? 6_000 : 400),
  }));
  const answers = await client.queue("q").sendAll(messages);
  const refused = answers.flatMap((it, n) => (it instanceof Answer ? [] : [[n, it.code]]));
  expect(refused).toEqual([[7, "too_large"]]);
  expect(answers.map((it) => (it instanceof Answer ? it.key : "k7"))).toEqual(
    messages.map(({ key }) => key),
  );
  expect(count).toBe(39);
});

test("a retry sends the bytes of the first try, whatever became of the caller's object", async () => {
  const bodies: string[] = [];
  let change = () => {};
  const client = await pretend(({ body, path, reply }) => {
    bodies.push(path.endsWith("/batch") ? JSON.parse(body).messages[0].body : body.slice(0, 3));
    if (bodies.length % 2 === 1) {
      change(); // After the first try, before the retry.
      reply({ code: "unavailable", retryable: true }, 503);
    } else {
      const answer = { answer: "accepted", key: "k", id: "1" };
      reply(path.endsWith("/batch") ? { answers: [answer] } : answer);
    }
  });
  const order = { lemons: 3 };
  change = () => {
    order.lemons = 4;
  };
  await client.queue("q").send(order, { key: "k" });
  const bytes = Buffer.alloc(1024 * 1024, "a");
  change = () => {
    bytes.fill("b");
  };
  await client.queue("q").send(bytes, { key: "k" });
  expect(bodies).toEqual(['{"lemons":3}', '{"lemons":3}', "aaa", "aaa"]);
});

test("a look-up and a claim whose waits end at once do not ask all the time", async () => {
  let calls = 0;
  const client = await pretend(({ path, reply }) => {
    calls += 1;
    if (path.endsWith("/claims")) {
      reply({ code: "in_flight", detail: "", retryable: true, retry_after_ms: 1 }, 409);
    } else {
      reply({ key: "k", id: "1", state: "leased", attempts: 1, generation: 0, group: null });
    }
  });
  await client.queue("q").key("k", { waitMs: 400 });
  expect(calls).toBeLessThan(20);
  calls = 0;
  expect((await client.queue("q").claim("k", { waitMs: 400 })).answer).toBe("in_flight");
  expect(calls).toBeLessThan(20);
});

/** What a handler may throw; none of it may end the worker, or leave its message without a settle. */
const trap = new Proxy(
  {},
  {
    get: () => {
      throw new Error("no");
    },
    getPrototypeOf: () => {
      throw new Error("no");
    },
  },
);
class Hostile extends Error {
  override get message(): string {
    throw new Error("no text");
  }
}
const THROWN: [string, () => unknown][] = [
  ["undefined", () => undefined],
  ["null", () => null],
  ["a text", () => "out of paper"],
  ["a symbol", () => Symbol("s")],
  ["an object without a prototype", () => Object.create(null)],
  ["a proxy that throws", () => trap],
  ["an error whose text throws", () => new Hostile()],
  [
    "an error whose text is an object",
    () => Object.assign(new Error(), { message: Object.create(null) }),
  ],
  [
    "an error that is its own cause",
    () => {
      const error: Error = new Error("round");
      error.cause = error;
      return error;
    },
  ],
  ["a text that is not Unicode", () => new Error("half \ud800")],
  ["a failure to be retried at no time", () => new Failure("x", { retryInMs: Number.NaN })],
  ["a failure to be retried before", () => new Failure("x", { retryInMs: -1 })],
  ["a failure to be retried never", () => Failure.retryIn(Number.POSITIVE_INFINITY, "x")],
];

/** The settles of one message, whose handler does this. */
async function settlesOf(handler: Handler): Promise<{ do: string; [name: string]: unknown }[]> {
  const settles: { do: string }[] = [];
  const client = await pretend(({ path, body, reply }) => {
    if (path.endsWith("/receive")) {
      reply({ messages: settles.length === 0 ? [delivered("k")] : [] });
      return;
    }
    const { items } = JSON.parse(body) as { items: { do: string }[] };
    settles.push(...items);
    reply({ answers: items.map(() => ({ answer: "ok" })) });
  });
  const events: WorkerEvent[] = [];
  const worker = new Worker(client.queue("q"), handler, { observe: (it) => events.push(it) });
  const running = worker.run();
  await until("the settle", () => events.some((event) => event.type === "settled"));
  expect(worker.health().running).toBe(0);
  worker.stop();
  await running;
  return settles;
}

test.each(THROWN)("a handler that throws %s fails its attempt", async (_, thrown) => {
  for (const handler of [
    () => {
      throw thrown();
    },
    () => Promise.reject(thrown()),
  ]) {
    const [settle] = await settlesOf(handler);
    expect(settle?.do).toMatch(/^(park|fail)$/);
    expect(settle?.error).toEqual(expect.any(String));
    expect(String(settle?.error).isWellFormed()).toBe(true);
    expect((settle?.delay_ms as number | undefined) ?? 0).toBeLessThanOrEqual(366 * 86_400_000);
  }
});

const RETURNED: [string, () => unknown][] = [
  ["a function", () => () => undefined],
  ["a symbol", () => Symbol("s")],
  ["a large number", () => 10n],
  [
    "what throws nothing when it is written",
    () => ({
      toJSON() {
        throw undefined;
      },
    }),
  ],
];

test.each(RETURNED)("a handler that returns %s makes its own message dead", async (_, returned) => {
  const [settle] = await settlesOf((async () => returned()) as Handler);
  expect(settle).toMatchObject({
    do: "park",
    dead: true,
    error: expect.stringContaining("result"),
  });
});

test("a large text full of escapes is settled in the shorter form", async () => {
  const text = "\u0001".repeat(300_000);
  const [settle] = await settlesOf(() => text);
  const { result } = settle as unknown as { result: { body_base64: string } };
  expect(Buffer.from(result.body_base64, "base64").toString()).toBe(text);
});

test("signals of many calls are not listened to afterwards", async () => {
  const client = await pretend(({ reply }) => reply({ messages: [] }));
  const { signal } = new AbortController();
  let listeners = 0;
  const { addEventListener, removeEventListener } = signal;
  signal.addEventListener = (...args: Parameters<typeof addEventListener>) => {
    listeners += 1;
    addEventListener.apply(signal, args);
  };
  signal.removeEventListener = (...args: Parameters<typeof removeEventListener>) => {
    listeners -= 1;
    removeEventListener.apply(signal, args);
  };
  const calls = Array.from({ length: 30 }, () => client.queue("q").receive({ signal }));
  await Promise.all(calls);
  const away = new Client("http://127.0.0.1:1").queue("q");
  await caught(away.send("x", { key: "k", signal, timeoutMs: 100 }));
  expect(listeners).toBe(0);
});
