/**
 * Responses of Express and Node that do not go as planned: streams, destroyed responses, errors after
 * the head, clients that leave, requests that are not what they seem.
 */

import { once } from "node:events";
import { type IncomingMessage, request, type Server } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { Readable } from "node:stream";
import express from "express";
import { expect, onTestFinished, test } from "vitest";
import { Idempotency, type IdempotencyEvent, type IdempotencyOptions } from "../src/http/index.js";
import { useBroker } from "../src/vitest.js";
import { until } from "./support/wait.js";

const hapax = useBroker();
let queues = 0;

interface Shop {
  port: number;
  events: IdempotencyEvent[];
  idempotency: Idempotency;
  /** The calls of the handler. */
  calls: number;
  post(key: string, body?: string): Promise<Response>;
}

/** A service with one route, in a queue that parks. */
async function shop(
  handler: (request: express.Request, response: express.Response, calls: number) => unknown,
  options: Partial<IdempotencyOptions> & { hasErrors?: boolean } = {},
): Promise<Shop> {
  const { hasErrors = true, ...more } = options;
  queues += 1;
  const queue = hapax.client().queue(`express-${queues}`);
  await queue.admin.put({ on_lost: "park" });
  const events: IdempotencyEvent[] = [];
  const observe = (event: IdempotencyEvent): void => void events.push(event);
  const idempotency = new Idempotency(queue, {
    required: ["POST /charges"],
    observe,
    // A machine that stalls for seconds is not a broker that is away.
    brokerTimeoutMs: 60_000,
    ...more,
  });
  const app = express();
  app.use(idempotency.express());
  const made: Shop = { port: 0, events, idempotency, calls: 0, post };
  app.post("/charges", async (incoming, response) => {
    made.calls += 1;
    await handler(incoming, response, made.calls);
  });
  if (hasErrors) {
    app.use(idempotency.expressErrors());
  }
  app.set("env", "test"); // Errors are not logged.
  const server: Server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  made.port = (server.address() as AddressInfo).port;
  function post(key: string, body = "{}"): Promise<Response> {
    const headers = { "content-type": "application/json", "idempotency-key": key };
    return fetch(`http://127.0.0.1:${made.port}/charges`, { method: "POST", body, headers });
  }
  return made;
}

const codeOf = async (response: Response): Promise<unknown> =>
  ((await response.json()) as { code?: string }).code;

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** What a server answers to these bytes, until it closes the connection. */
function raw(port: number, ...parts: string[]): Promise<string> {
  return new Promise((resolve) => {
    let answer = "";
    const socket = connect(port, "127.0.0.1");
    socket.on("data", (data) => {
      answer += data;
    });
    socket.on("error", () => undefined);
    socket.on("close", () => resolve(answer));
    for (const part of parts) {
      socket.write(part);
    }
  });
}

test.each([
  ["too large to be stored", 200],
  ["not stored", 503],
])("a response that is written in parts and is %s arrives in order", async (_, status) => {
  const part = (n: number): Buffer => Buffer.alloc(1_000_000, n);
  let settle = (): void => undefined;
  const settled = new Promise<void>((resolve) => {
    settle = resolve;
  });
  const made = await shop(
    async (_request, response) => {
      response.status(status);
      for (let n = 0; n < 16; n += 1) {
        response.write(part(n));
        if (n === 9) {
          // From here on the response is being sent, to a client that does not read yet.
          await settled;
          await pause(50);
        }
      }
      response.end("end");
    },
    { observe: (event) => event.type === "settled" && settle() },
  );
  const asked = request({ port: made.port, method: "POST", path: "/charges" });
  asked.setHeader("idempotency-key", "k").end();
  const [response] = (await once(asked, "response")) as [IncomingMessage];
  await pause(300);
  const body = Buffer.concat(await response.toArray());
  const parts = Array.from({ length: 16 }, (_, n) => part(n));
  expect(Buffer.compare(body, Buffer.concat([...parts, Buffer.from("end")]))).toBe(0);
  expect(response.statusCode).toBe(status);
});

test("a handler that writes more than its client reads is asked to pause", async () => {
  const waits: boolean[] = [];
  const source = Readable.from(
    (function* () {
      for (let n = 0; n < 200; n += 1) {
        yield Buffer.alloc(64 * 1024, n);
      }
    })(),
  );
  const made = await shop((_request, response) => {
    const { write } = response;
    response.write = ((chunk: Buffer) => {
      const goesOn = (write as (chunk: Buffer) => boolean).call(response, chunk);
      waits.push(!goesOn);
      return goesOn;
    }) as typeof response.write;
    source.pipe(response);
  });
  const response = await made.post("k");
  expect((await response.arrayBuffer()).byteLength).toBe(200 * 64 * 1024);
  expect(waits).toContain(true);
});

test("a response that is destroyed before its head leaves the operation in doubt", async () => {
  const made = await shop((_request, response) => {
    response.destroy(new Error("out of paper"));
  });
  await expect(made.post("k")).rejects.toThrow();
  const again = await made.post("k");
  expect([again.status, await codeOf(again)]).toEqual([409, "in_doubt"]);
  expect(made.calls).toBe(1);
  expect(await made.idempotency.drained(120_000)).toBe(true);
});

test("a response that is destroyed after its head leaves the operation in doubt", async () => {
  const made = await shop((_request, response) => {
    response.write("half of");
    response.destroy();
  });
  expect((await made.post("k")).status).toBe(500);
  const again = await made.post("k");
  expect([again.status, await codeOf(again)]).toEqual([409, "in_doubt"]);
  expect(await made.idempotency.drained(120_000)).toBe(true);
});

test("an error after the head leaves the operation in doubt, and is not stored", async () => {
  const made = await shop((_request, response) => {
    response.write("half of");
    throw new Error("out of paper");
  });
  await made.post("k").catch(() => undefined);
  const again = await made.post("k");
  expect([again.status, await codeOf(again)]).toEqual([409, "in_doubt"]);
});

test("a response that nobody ends does not hold its key for ever", async () => {
  const made = await shop(
    (_request, response) => {
      response.write("half of");
      throw new Error("out of paper");
    },
    { hasErrors: false, leaseMs: 5_000 },
  );
  await made.post("k").catch(() => undefined);
  await until("the end", () => made.idempotency.running === 0);
  expect(await (await made.post("k")).json()).toMatchObject({ code: "in_doubt" });
});

test("a client that leaves does not disturb the handler, and its retry gets the response", async () => {
  let leave = (): void => undefined;
  const left = new Promise<void>((resolve) => {
    leave = resolve;
  });
  const seen: unknown[] = [];
  const made = await shop(async (incoming, response) => {
    const closed = new Promise<void>((resolve) => incoming.socket.once("close", () => resolve()));
    leave();
    await closed;
    await pause(50);
    seen.push(response.destroyed, response.headersSent, response.writableEnded);
    const source = Readable.from([Buffer.from("three "), Buffer.from("lemons")]);
    source.pipe(response.status(201));
  });
  const controller = new AbortController();
  const first = fetch(`http://127.0.0.1:${made.port}/charges`, {
    method: "POST",
    headers: { "idempotency-key": "k" },
    signal: controller.signal,
  });
  first.catch(() => undefined);
  await left;
  controller.abort();
  await until("the end", () => made.events.some((event) => event.type === "settled"));
  const again = await fetch(`http://127.0.0.1:${made.port}/charges`, {
    method: "POST",
    headers: { "idempotency-key": "k" },
  });
  expect([again.status, await again.text()]).toEqual([201, "three lemons"]);
  expect(again.headers.get("idempotency-replayed")).toBe("true");
  expect(seen).toEqual([false, false, false]);
  expect(made.calls).toBe(1);
});

test("a request target that Express reads as the route is protected, or refused", async () => {
  const made = await shop((_request, response) => response.send("charged"));
  const head = "Host: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
  const targets = [
    "/charges",
    "http://x/charges",
    "HTTP://x:80/charges?a=b",
    "/charges#x",
    "/charges#/../y",
    "/charges#?a=b",
    "/CHARGES",
    "/charges/",
    "/charges\u00a0",
  ];
  for (const target of targets) {
    const answer = await raw(made.port, `POST ${target} HTTP/1.1\r\n${head}`);
    expect(answer, target).toMatch(/^HTTP\/1\.1 400 /);
  }
  expect(made.calls).toBe(0);
});

test("a request that is too large or too slow gets its refusal, whatever it still sends", async () => {
  const send = (_request: express.Request, response: express.Response): unknown =>
    response.send("charged");
  const made = await shop(send, { requestBytesMax: 50_000 });
  const hasty = await shop(send, { requestBytesMax: 50_000, requestTimeoutMs: 500 });
  const head = "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n";
  const chunk = `${(40_000).toString(16)}\r\n${"x".repeat(40_000)}\r\n`;
  const chunked = `${head}Transfer-Encoding: chunked\r\n\r\n`;
  expect(await raw(made.port, chunked, chunk, chunk)).toMatch(/^HTTP\/1\.1 413 /);
  expect(await raw(hasty.port, chunked, chunk)).toMatch(/^HTTP\/1\.1 408 /);
  const told = `${head}Content-Length: 60000\r\n\r\n`;
  expect(await raw(made.port, told, "x".repeat(40_000))).toMatch(/^HTTP\/1\.1 413 /);
  expect([made.calls, hasty.calls]).toEqual([0, 0]);
});

test("heads are as Node would send them", async () => {
  const made = await shop((_request, response, calls) => {
    switch (calls) {
      case 1:
        response.writeHead(201, ["Set-Cookie", "a=1", "set-cookie", "b=2", "X-A", "1"]);
        break;
      case 2:
        response.setHeader("x-a", "0");
        response.writeHead(201, "Made", { "x-a": "1", "set-cookie": ["a=1", "b=2"] });
        break;
      default:
        response.writeHead(201, [
          ["x-a", "1"],
          ["set-cookie", "a=1"],
          ["set-cookie", "b=2"],
        ] as never);
    }
    response.end();
  });
  for (const key of ["a", "b", "c"]) {
    const response = await made.post(key);
    expect([response.status, response.headers.get("x-a")]).toEqual([201, "1"]);
    expect(response.headers.getSetCookie()).toEqual(["a=1", "b=2"]);
    const again = await made.post(key);
    expect([again.headers.get("x-a"), again.headers.getSetCookie()]).toEqual(["1", []]);
  }
});

test("what goes wrong in the service's own code is an error, and leaves no key claimed", async () => {
  const thrower = (): never => {
    throw new Error("out of paper");
  };
  const tenant = await shop(thrower, { tenant: thrower });
  expect((await tenant.post("k")).status).toBe(500);
  expect(tenant.calls).toBe(0);
  const bad: [string, (response: express.Response) => void, Partial<IdempotencyOptions>][] = [
    ["a policy that throws", (response) => response.send("charged"), { policy: thrower }],
    ["a policy of nothing", (response) => response.send("charged"), { policy: (() => 7) as never }],
    ["a status that is none", (response) => response.status(799).end(), {}],
  ];
  for (const [what, respond, options] of bad) {
    const made = await shop((_request, response) => respond(response), options);
    expect((await made.post("k")).status, what).toBe(500);
    const again = await made.post("k");
    expect([again.status, await codeOf(again)], what).toEqual([409, "in_doubt"]);
    expect(await made.idempotency.drained(120_000), what).toBe(true);
  }
  for (const ms of [Number.NaN, -1]) {
    const queue = hapax.client().queue("never");
    const options = { required: ["POST /charges"], requestTimeoutMs: ms };
    expect(() => new Idempotency(queue, options)).toThrow(TypeError);
  }
});

test("a handler of the Fetch kind that returns nothing, or what was read, is in doubt", async () => {
  const queue = hapax.client().queue("fetch-odd");
  await queue.admin.put({ on_lost: "park" });
  const rules = { required: ["POST /charges"], brokerTimeoutMs: 60_000 };
  const idempotency = new Idempotency(queue, rules);
  const ask = (key: string): Request =>
    new Request("http://shop/charges", { method: "POST", headers: { "idempotency-key": key } });
  const nothing = idempotency.fetch((() => undefined) as never);
  await expect(nothing(ask("a"))).rejects.toThrow("no response");
  const used = idempotency.fetch(async () => {
    const response = new Response("charged");
    await response.text();
    return response;
  });
  expect((await used(ask("b"))).status).toBe(500);
  for (const key of ["a", "b"]) {
    expect(await (await used(ask(key))).json()).toMatchObject({ code: "in_doubt" });
  }
  expect(await idempotency.drained(120_000)).toBe(true);
});
