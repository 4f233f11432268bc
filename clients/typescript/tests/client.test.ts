/** The client beyond the conformance suite: connections that break, aborts, large bodies, tokens. */

import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, expect, test } from "vitest";
import {
  Client,
  ConnectionError,
  HapaxError,
  Held,
  InvalidConfigError,
  RateLimitedError,
  TimeoutError,
  TooLargeError,
  UnauthorizedError,
  UnavailableError,
} from "../src/index.js";
import { useBroker } from "../src/vitest.js";

const hapax = useBroker();
const closing: (() => void)[] = [];
afterAll(() => {
  for (const close of closing) {
    close();
  }
});

/** A server in place of a broker. */
async function pretend(listener: RequestListener): Promise<Client> {
  const server = createServer(listener).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  closing.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
}

const accepted = (key: string): string =>
  JSON.stringify({ answers: [{ answer: "accepted", key, id: "1", state: "ready" }] });

test("a retry never makes a new key, also of a message without one", async () => {
  const keys: string[] = [];
  const client = await pretend((request, response) => {
    let body = "";
    request.on("data", (data) => {
      body += data;
    });
    request.on("end", () => {
      keys.push(JSON.parse(body).messages[0].key);
      if (keys.length < 3) {
        response.destroy();
      } else {
        response.writeHead(200, { "content-type": "application/json" });
        response.end(accepted(keys[0] as string));
      }
    });
  });
  const answer = await client.queue("q").send("x");
  expect(answer.isNew).toBe(true);
  expect(keys.length).toBe(3);
  expect(new Set(keys)).toEqual(new Set([answer.key]));
});

test("a message without a key that got no answer is told with its generated key", async () => {
  const client = await pretend((_request, response) => response.destroy());
  const error = await client
    .queue("q")
    .send("x", { timeoutMs: 100 })
    .then(undefined, (it) => it);
  expect(error).toBeInstanceOf(UnavailableError);
  expect(error.key).toMatch(/^[0-9a-f-]{36}$/);
  const named = await client
    .queue("q")
    .send("x", { key: "k", timeoutMs: 100 })
    .catch((it) => it);
  expect([named.retryable, named.code, named.key]).toEqual([true, "unavailable", undefined]);
  const messages = [{ body: "1" }, { body: "2", key: "k" }, { body: "3" }];
  const all = await client.queue("q").sendAll(messages, { timeoutMs: 100 });
  const keys = all.map((answer) => (answer as HapaxError).key);
  expect(keys[1]).toBe(undefined);
  expect(new Set(keys).size).toBe(3);
  const nobody = new Client("http://127.0.0.1:1").queue("q").receive();
  await expect(nobody).rejects.toBeInstanceOf(ConnectionError);
});

test("Retry-After is respected: a pause past the timeout is not begun", async () => {
  let calls = 0;
  const client = await pretend((_request, response) => {
    calls += 1;
    response.writeHead(429, { "content-type": "application/problem+json", "retry-after": "3600" });
    response.end('{"code":"rate_limited","detail":"too fast","retryable":true}');
  });
  const error = await client
    .queue("q")
    .send("x", { key: "k" })
    .catch((it) => it);
  expect(error).toBeInstanceOf(RateLimitedError);
  expect([error.retryAfterMs, error.status, calls]).toEqual([3_600_000, 429, 1]);
});

test("a server that hangs is a timeout, and one that is no broker is told apart", async () => {
  const hanging = await pretend(() => undefined);
  const late = await hanging
    .queue("q")
    .send("x", { key: "k", timeoutMs: 200 })
    .catch((it) => it);
  expect(late).toBeInstanceOf(TimeoutError);
  const html = await pretend((_request, response) => {
    response.writeHead(404, { "content-type": "text/html" });
    response.end("<html>");
  });
  const wrong = await html
    .queue("q")
    .send("x", { key: "k" })
    .catch((it) => it);
  expect([wrong.code, wrong.message]).toEqual(["invalid", expect.stringContaining("not a Hapax")]);
  const gateway = await pretend((_request, response) => {
    response.writeHead(502).end("bad gateway");
  });
  const away = await gateway
    .queue("q")
    .send("x", { key: "k", timeoutMs: 100 })
    .catch((it) => it);
  expect(away).toBeInstanceOf(UnavailableError);
});

test("a signal ends a call with its reason, also in a pause", async () => {
  const away = await pretend((_request, response) => response.destroy());
  const controller = new AbortController();
  const sent = away.queue("q").send("x", { key: "k", signal: controller.signal });
  setTimeout(() => controller.abort(new Error("enough")), 50);
  await expect(sent).rejects.toThrow("enough");
  const gone = AbortSignal.abort(new Error("before"));
  await expect(away.queue("q").send("x", { signal: gone })).rejects.toThrow("before");
  const waits = hapax.client().queue("aborts");
  await waits.admin.put();
  const waiting = new AbortController();
  const received = waits.receive({ waitMs: 60_000, signal: waiting.signal });
  setTimeout(() => waiting.abort(new Error("no more")), 50);
  await expect(received).rejects.toThrow("no more");
});

test("large and odd bodies arrive as they were sent", async () => {
  const queue = hapax.client().queue("large");
  await queue.admin.put({ max_body_bytes: 8 * 1024 * 1024 });
  const bytes = new Uint8Array(3 * 1024 * 1024).map((_, index) => index % 251);
  const options = { key: 'größe "1"', group: "g", headers: { note: "grüße" }, contentType: "x/y" };
  expect((await queue.send(bytes, options)).isNew).toBe(true);
  expect((await queue.send(bytes, options)).answer).toBe("in_flight");
  const [delivery] = await queue.receive({ max: 1, waitMs: 20_000 });
  expect(delivery?.key).toBe('größe "1"');
  expect(Buffer.compare(delivery?.body ?? new Uint8Array(), bytes)).toBe(0);
  expect([delivery?.group, delivery?.contentType]).toEqual(["g", "x/y"]);
  expect(delivery?.headers).toEqual({ note: "grüße" });
  const [lease] = [delivery?.lease ?? ""];
  await queue.settle([{ lease, do: "done" }]);
  const tooLarge = await queue
    .send(new Uint8Array(9 * 1024 * 1024), { key: "l" })
    .catch((it) => it);
  expect(tooLarge).toBeInstanceOf(TooLargeError);
});

test("a batch of thousands is answered in order, and one refusal harms no other", async () => {
  const queue = hapax.client().queue("thousands");
  await queue.admin.put();
  const messages = Array.from({ length: 2_500 }, (_, index) => ({
    key: index === 1_234 ? "bad\nkey" : `k${index}`,
    body: String(index),
  }));
  const answers = await queue.sendAll(messages);
  expect(answers.length).toBe(2_500);
  const refused = answers.filter((answer) => answer instanceof HapaxError);
  expect(refused.length).toBe(1);
  expect(answers[1_234]).toMatchObject({ code: "malformed_key" });
  expect((await queue.admin.get()).stats.ready).toBe(2_499);
});

test("a queue is changed on a condition, and browsed", async () => {
  const { admin, ...queue } = hapax.client().queue("conditions");
  const made = await admin.put({}, { ifNoneMatch: "*" });
  expect(made.createdAt).toBeInstanceOf(Date);
  await expect(admin.put({}, { ifNoneMatch: "*" })).rejects.toBeInstanceOf(InvalidConfigError);
  const changed = await admin.put({ lease_ms: 5_000 }, { ifMatch: made.etag });
  expect(changed.config.lease_ms).toBe(5_000);
  await expect(admin.put({}, { ifMatch: made.etag })).rejects.toBeInstanceOf(InvalidConfigError);
  const client = hapax.client();
  await client.queue(queue.name).sendAll([
    { key: "a", body: "1" },
    { key: "b", body: { n: 2 } },
  ]);
  const found: [string, string | undefined][] = [];
  for await (const { key, content } of admin.browse("ready", { pageSize: 1 })) {
    found.push([key, content?.text]);
  }
  expect(found.sort()).toEqual([
    ["a", "1"],
    ["b", '{"n":2}'],
  ]);
  expect((await client.queues()).map((info) => info.queue)).toContain("conditions");
  const dry = await admin.redrive({ all: true, dry_run: true });
  expect([dry.done, dry.moved]).toEqual([true, 0]);
  await admin.delete();
});

test("a claim runs its emits, extends itself, and is lost with its signal", async () => {
  const queue = hapax.client().queue("claims");
  await queue.admin.put();
  const claim = await queue.claim("c", { leaseMs: 10_000 });
  if (!(claim instanceof Held)) {
    throw new Error(claim.answer);
  }
  await claim.extend(12_000);
  await claim.save("p", { n: 1 });
  // An operator takes the key away: the next extension tells.
  const lost = new Promise((resolve) => claim.signal.addEventListener("abort", resolve));
  await queue.admin.discard("c").catch(() => queue.admin.delete());
  await lost;
  await expect(claim.begin()).rejects.toMatchObject({ code: /lease_lost|no_such_queue/ });
});

test("a token is sent, and a wrong one is refused", async () => {
  let header: string | undefined;
  const client = await pretend((request, response) => {
    header = request.headers.authorization;
    response.writeHead(401, { "content-type": "application/problem+json" });
    response.end('{"code":"unauthorized","detail":"who is that?","retryable":false}');
  });
  const withToken = new Client(client.url, { token: "secret" });
  await expect(withToken.queues()).rejects.toBeInstanceOf(UnauthorizedError);
  expect(header).toBe("Bearer secret");
  expect(() => new Client("ftp://127.0.0.1")).toThrow("http://");
});
