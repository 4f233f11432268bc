/** Idempotency keys for HTTP services, by each adapter, on the real broker. */

import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { type ServerType, serve } from "@hono/node-server";
import express from "express";
import { Hono } from "hono";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Idempotency, type IdempotencyEvent, type Operation } from "../src/http/index.js";
import type { QueueConfig } from "../src/index.js";
import { useBroker } from "../src/vitest.js";
import { until } from "./support/wait.js";

const hapax = useBroker();
let queues = 0;

async function queue(config: QueueConfig = {}) {
  queues += 1;
  const made = hapax.client().queue(`http-${queues}`);
  await made.admin.put(config);
  return made;
}

/** The service that every adapter serves: what a request says is what the handler does. */
class Shop {
  calls = 0;
  operations: (Operation | undefined)[] = [];
  gate: Promise<void> = Promise.resolve();

  async charge(body: string, operation: Operation | undefined): Promise<Response> {
    this.calls += 1;
    this.operations.push(operation);
    await this.gate;
    const order = JSON.parse(body) as { do?: string; bytes?: number };
    const headers = { "x-call": String(this.calls), "set-cookie": "a=b", etag: '"1"' };
    switch (order.do) {
      case "fail":
        return new Response("busy", { status: 503, headers });
      case "throw":
        throw new Error("out of paper");
      case "large":
        return new Response(new Uint8Array(order.bytes ?? 0).fill(7), { status: 201, headers });
      default:
        return new Response(`charged ${this.calls}`, { status: 201, headers });
    }
  }
}

interface Service {
  shop: Shop;
  events: IdempotencyEvent[];
  idempotency: Idempotency;
  post(path: string, body: string, headers?: Record<string, string>): Promise<Response>;
}

const closing: (() => void)[] = [];
afterAll(() => {
  for (const close of closing) {
    close();
  }
});

function client(port: number): Service["post"] {
  return (path, body, headers = {}) =>
    fetch(`http://127.0.0.1:${port}${path}`, {
      method: "POST",
      body,
      headers: { "content-type": "application/json", ...headers },
    });
}

const ADAPTERS: Record<string, (idempotency: Idempotency, shop: Shop) => Promise<Service["post"]>> =
  {
    async fetch(idempotency, shop) {
      const handler = idempotency.fetch(async (request, operation) =>
        shop.charge(await request.text(), operation),
      );
      return async (path, body, headers = {}) => {
        const all = { "content-type": "application/json", ...headers };
        const request = new Request(`http://shop${path}`, { method: "POST", body, headers: all });
        return handler(request).catch(() => new Response("thrown", { status: 500 }));
      };
    },
    async hono(idempotency, shop) {
      const app = new Hono<{ Variables: { operation: Operation | undefined } }>();
      app.use(idempotency.hono());
      app.post("/*", async (c) => shop.charge(await c.req.text(), c.get("operation")));
      app.onError((error, c) => c.text(error.message, 500));
      const server: ServerType = await new Promise((resolve) => {
        const made = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, () =>
          resolve(made),
        );
      });
      closing.push(() => server.close());
      return client((server.address() as AddressInfo).port);
    },
    async express(idempotency, shop) {
      const app = express();
      app.use(idempotency.express());
      app.use(express.json());
      app.post("/{*path}", async (request, response) => {
        const answer = await shop.charge(
          JSON.stringify(request.body),
          idempotency.operation(request),
        );
        response.status(answer.status);
        for (const [name, value] of answer.headers) {
          response.append(name, value);
        }
        response.end(Buffer.from(await answer.arrayBuffer()));
      });
      app.use(idempotency.expressErrors());
      app.use(((_error, _request, response, _next) => {
        response.status(500).send("thrown");
      }) as express.ErrorRequestHandler);
      const server: Server = await new Promise((resolve) => {
        const made = app.listen(0, "127.0.0.1", () => resolve(made));
      });
      closing.push(() => server.close());
      return client((server.address() as AddressInfo).port);
    },
  };

async function service(
  adapter: keyof typeof ADAPTERS,
  config: QueueConfig = {},
  options = {},
): Promise<Service> {
  const shop = new Shop();
  const events: IdempotencyEvent[] = [];
  const idempotency = new Idempotency(await queue(config), {
    required: ["POST /charges"],
    optional: ["POST /orders/{order}"],
    observe: (event) => events.push(event),
    // A machine that stalls for seconds is not a broker that is away.
    brokerTimeoutMs: 60_000,
    ...options,
  });
  const make = ADAPTERS[adapter] as (typeof ADAPTERS)[string];
  return { shop, events, idempotency, post: await make(idempotency, shop) };
}

const problem = async (response: Response): Promise<Record<string, unknown>> =>
  (await response.json()) as Record<string, unknown>;

describe.each(Object.keys(ADAPTERS))("%s", (adapter) => {
  test("a retry gets the first response, marked, and the handler runs once", async () => {
    const { post, shop, events, idempotency } = await service(adapter);
    const first = await post("/charges", '{"cents":17}', { "idempotency-key": "order-1" });
    expect([first.status, await first.text()]).toEqual([201, "charged 1"]);
    expect(first.headers.get("set-cookie")).toBe("a=b");
    const second = await post("/charges", '{"cents":17}', { "idempotency-key": '"order-1"' });
    expect([second.status, await second.text()]).toEqual([201, "charged 1"]);
    expect(second.headers.get("idempotency-replayed")).toBe("true");
    expect([second.headers.get("etag"), second.headers.get("x-call")]).toEqual(['"1"', "1"]);
    expect(second.headers.get("set-cookie")).toBe(null);
    expect(shop.calls).toBe(1);
    const outcomes = events.filter((event) => event.type === "answered");
    expect(outcomes.map((event) => event.outcome)).toEqual(["fresh", "replayed"]);
    expect(await idempotency.drained(10_000)).toBe(true);
  });

  test("another request with the key is a conflict", async () => {
    const { post, shop } = await service(adapter);
    await post("/charges", '{"cents":17}', { "idempotency-key": "k" });
    const other = [
      await post("/charges", '{"cents":18}', { "idempotency-key": "k" }),
      await post("/charges?again", '{"cents":17}', { "idempotency-key": "k" }),
      await post("/charges", '{"cents":17}', { "idempotency-key": "k", authorization: "Bearer x" }),
    ];
    for (const response of other) {
      expect(response.status).toBe(422);
      expect((await problem(response)).code).toBe("conflict");
    }
    expect(shop.calls).toBe(1);
  });

  test("keys that are missing, malformed or optional", async () => {
    const { post, shop } = await service(adapter);
    const missing = await post("/charges", "{}", { "x-idempotency-key": "k" });
    expect(missing.status).toBe(400);
    expect(await problem(missing)).toMatchObject({ code: "missing_key", retryable: false });
    const malformed = await post("/charges", "{}", { "idempotency-key": "a b" });
    expect((await problem(malformed)).code).toBe("malformed_key");
    const long = await post("/charges", "{}", { "idempotency-key": "x".repeat(256) });
    expect((await problem(long)).code).toBe("malformed_key");
    expect(shop.calls).toBe(0);
    expect((await post("/orders/7", "{}")).status).toBe(201);
    expect((await post("/orders/7", "{}")).status).toBe(201);
    expect((await post("/elsewhere", "{}")).status).toBe(201);
    expect(shop.calls).toBe(3);
    expect(shop.operations).toEqual([undefined, undefined, undefined]);
    expect((await post("/CHARGES", "{}")).status).toBe(400);
  });

  test("concurrent duplicates: one runs, others get 409 or wait", async () => {
    const { post, shop } = await service(adapter);
    let open = (): void => undefined;
    shop.gate = new Promise((resolve) => {
      open = resolve;
    });
    const first = post("/charges", "{}", { "idempotency-key": "k" });
    await until("the handler", () => shop.calls === 1);
    const second = await post("/charges", "{}", { "idempotency-key": "k" });
    expect([second.status, second.headers.get("retry-after")]).toEqual([409, "1"]);
    expect((await problem(second)).code).toBe("in_flight");
    const waiting = post("/charges", "{}", { "idempotency-key": "k", prefer: "wait=30" });
    open();
    expect(await (await first).text()).toBe("charged 1");
    const waited = await waiting;
    expect(await waited.text()).toBe("charged 1");
    expect(waited.headers.get("preference-applied")).toBe("wait=30");
    expect(shop.calls).toBe(1);
  });

  test("a 503 frees the key, and the next attempt finds what was saved", async () => {
    const { post, shop } = await service(adapter);
    const failed = await post("/charges", '{"do":"fail"}', { "idempotency-key": "k" });
    expect([failed.status, await failed.text()]).toEqual([503, "busy"]);
    const again = await post("/charges", '{"do":"fail"}', { "idempotency-key": "k" });
    expect(again.status).toBe(503);
    expect(shop.calls).toBe(2);
    const [one, two] = shop.operations;
    expect(one?.key).toBe("k");
    expect(one?.derive("charge")).toBe(two?.derive("charge"));
    expect(BigInt(two?.fence ?? 0) > BigInt(one?.fence ?? 0)).toBe(true);
  });

  test("a handler that throws leaves it in doubt, in a queue that parks", async () => {
    const { post, shop } = await service(adapter, { on_lost: "park" });
    const thrown = await post("/charges", '{"do":"throw"}', { "idempotency-key": "k" });
    expect(thrown.status).toBe(500);
    const again = await post("/charges", '{"do":"throw"}', { "idempotency-key": "k" });
    expect(again.status).toBe(409);
    expect((await problem(again)).code).toBe("in_doubt");
    expect(shop.calls).toBe(1);
  });

  test("a response that is too large reaches its client, and its retry is told", async () => {
    const { post, shop } = await service(adapter, {}, { responseBytesMax: 1_000 });
    const body = '{"do":"large","bytes":200000}';
    const large = await post("/charges", body, { "idempotency-key": "k" });
    expect(large.status).toBe(201);
    expect((await large.arrayBuffer()).byteLength).toBe(200_000);
    const again = await post("/charges", body, { "idempotency-key": "k" });
    expect(again.status).toBe(410);
    const told = { code: "response_not_kept", original_status: 201 };
    expect(await problem(again)).toMatchObject(told);
    const request = await post("/charges", "x".repeat(1_100_000), { "idempotency-key": "l" });
    expect(request.status).toBe(413);
    expect(shop.calls).toBe(1);
  });

  test("a header that names a tenant is text", async () => {
    const { post, shop } = await service(adapter, {}, { tenantHeader: "x-account" });
    const as = (account: string) => ({ "idempotency-key": "k", "x-account": account });
    expect((await post("/charges", "{}", as("\u00e9"))).status).toBe(401);
    expect(shop.calls).toBe(0);
    const both = { required: ["POST /a"], tenantHeader: "a", tenant: () => "a" };
    const made = await queue();
    expect(() => new Idempotency(made, both)).toThrow(TypeError);
  });

  test("tenants have keys of their own, and nobody is a tenant", async () => {
    const tenant = ({ headers }: { headers: Headers }) => headers.get("x-account") ?? undefined;
    for (const options of [{ tenant }, { tenantHeader: "X-Account" }]) {
      const { post, shop } = await service(adapter, {}, options);
      const as = (account: string) => ({ "idempotency-key": "k", "x-account": account });
      expect(await (await post("/charges", "{}", as("ada"))).text()).toBe("charged 1");
      expect(await (await post("/charges", "{}", as("bob"))).text()).toBe("charged 2");
      expect(await (await post("/charges", "{}", as("ada"))).text()).toBe("charged 1");
      expect((await post("/charges", "{}", { "idempotency-key": "k" })).status).toBe(401);
      expect(shop.calls).toBe(2);
    }
  });
});

describe("without a broker", () => {
  let port = 0;
  beforeAll(async () => {
    const { createServer } = await import("node:net");
    const server = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    port = (server.address() as AddressInfo).port;
    await new Promise((resolve) => server.close(resolve));
  });

  test("nothing is done, unless it is open", async () => {
    const { Client } = await import("../src/index.js");
    const away = new Client(`http://127.0.0.1:${port}`).queue("http");
    const request = () =>
      new Request("http://shop/charges", { method: "POST", headers: { "idempotency-key": "k" } });
    let calls = 0;
    const handler = () => {
      calls += 1;
      return new Response("done");
    };
    const options = { required: ["POST /charges"], brokerTimeoutMs: 200 };
    const closed = await new Idempotency(away, options).fetch(handler)(request());
    expect([closed.status, closed.headers.get("retry-after"), calls]).toEqual([503, "1", 0]);
    const open = new Idempotency(away, { ...options, onUnavailable: "open" });
    expect(await (await open.fetch(handler)(request())).text()).toBe("done");
    expect(calls).toBe(1);
  });
});

test("the same keys as `hapax proxy`: what it stored is replayed here, and the other way round", async () => {
  const { Child } = await import("./support/processes.js");
  const shop = new Shop();
  const app = express();
  app.post("/charges", (_request, response) => {
    shop.calls += 1;
    response.status(201).set("x-call", String(shop.calls)).send(`charged ${shop.calls}`);
  });
  const server: Server = await new Promise((resolve) => {
    const made = app.listen(0, "127.0.0.1", () => resolve(made));
  });
  closing.push(() => server.close());
  const upstream = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const http = await queue({ on_lost: "park" });
  const { mkdtempSync, readFileSync, rmSync } = await import("node:fs");
  const directory = mkdtempSync("/tmp/hapax-proxy-");
  const file = `${directory}/port`;
  const proxy = new Child(process.env.HAPAX_BIN ?? "hapax", [
    ...["proxy", "--server", hapax.url, "--upstream", upstream, "--queue", http.name],
    ...["--route", "POST /charges", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"],
    ...["--port-file", file],
  ]);
  try {
    let address = "";
    await until("the proxy", () => {
      try {
        address = readFileSync(file, "utf8").split(/\s/)[0] ?? "";
      } catch {
        // Not yet.
      }
      return address.includes(":");
    });
    const options = { required: ["POST /charges"], brokerTimeoutMs: 60_000 };
    const layer = new Idempotency(http, options).fetch(() => {
      shop.calls += 1;
      return new Response(`charged ${shop.calls}`, { status: 201 });
    });
    const init = (key: string) => ({
      method: "POST",
      body: "17 euro",
      headers: { "idempotency-key": key, "content-type": "text/plain" },
    });
    const first = await fetch(`http://${address}/charges`, init("a"));
    expect(await first.text()).toBe("charged 1");
    const replayed = await layer(new Request("http://shop/charges", init("a")));
    expect(replayed.headers.get("idempotency-replayed")).toBe("true");
    expect([await replayed.text(), replayed.headers.get("x-call")]).toEqual(["charged 1", "1"]);
    const own = await layer(new Request("http://shop/charges", init("b")));
    expect(await own.text()).toBe("charged 2");
    const other = await fetch(`http://${address}/charges`, init("b"));
    expect(other.headers.get("idempotency-replayed")).toBe("true");
    expect(await other.text()).toBe("charged 2");
    expect(shop.calls).toBe(2);
  } finally {
    await proxy.kill();
    rmSync(directory, { recursive: true, force: true });
  }
});
