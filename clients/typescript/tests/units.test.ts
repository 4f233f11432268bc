/** The parts that need no broker. */

import { describe, expect, test } from "vitest";
import { blake3Hex } from "../src/blake3.js";
import { Content } from "../src/content.js";
import { Delivery } from "../src/delivery.js";
import { ConflictError, errorOf, HapaxError, UnavailableError } from "../src/errors.js";
import { rulesOf } from "../src/http/options.js";
import { looseSegments, Route, segments } from "../src/http/route.js";
import { claimKey } from "../src/http/scope.js";
import { decode, encode, HEADERS_BYTES_MAX, storedHeaders } from "../src/http/stored.js";
import { Client, Done, derive, Failure, newKey } from "../src/index.js";
import { dateMs, deriveFirst, quoteKey, readKey } from "../src/keys.js";
import { packed, written } from "../src/pack.js";
import { now, Retry } from "../src/retry.js";
import { errorText, failureOf } from "../src/settle.js";
import { Hold, Leases } from "../src/worker/leases.js";
import { intentOf, Ledger, outcomeOf, tooLargeOf } from "../src/worker/steps.js";

const text = (value: string): Uint8Array => new TextEncoder().encode(value);

describe("keys", () => {
  test("derived keys are those of every language", () => {
    const parent = { queue: "payments", key: "order-42" };
    expect(derive(parent, "receipt")).toBe("0b8370e7dbbb232a7c3ebeae3c071041");
    const grouped = { ...parent, group: "g", generation: 10 };
    expect(derive(grouped, "receipt")).toBe("5d709f6843c175e07feb9e08066d09c0");
    expect(deriveFirst("order-42", 0, "receipt")).toBe("0565ea6d7cff144c61d13c71931a6bd3");
  });

  test("a new key is a UUIDv7 of now", () => {
    const key = newKey();
    expect(key).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(Math.abs((dateMs(key, Date.now()) ?? 0) - Date.now())).toBeLessThan(10_000);
    expect(newKey()).not.toBe(key);
  });

  test("dates are read from UUIDv7 and ULID, and from nothing else", () => {
    const at = 1_800_000_000_000;
    expect(dateMs("018bcfe5-6800-7000-8000-000000000001", at)).toBe(0x018b_cfe5_6800);
    expect(dateMs("01hf7yat0000000000000000ab", at)).toBe(0x018b_cfe5_6800);
    expect(dateMs("01ARZ3NDEKTSV4RRFFQ69G5FAV", at)).toBe(1_469_922_850_259);
    for (const key of [
      "018bcfe5-6800-4000-8000-000000000001",
      "00000000-6800-7000-8000-000000000001",
      "018bcfe5-6800-7000-c000-000000000001",
      "ORDERORDERORDERORDERORDER1",
      "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
      "order-42",
    ]) {
      expect(dateMs(key, at), key).toBe(undefined);
    }
  });

  test("a key in a header is quoted or bare", () => {
    expect(readKey(' "a \\"b\\" \\\\c" ')).toBe('a "b" \\c');
    expect(readKey("user:7/order;1=x")).toBe("user:7/order;1=x");
    for (const value of ["", '""', '"', '"a"b', '"a", "b"', '"a\\b"', "a b", 'a"b', '"a\tb"']) {
      expect(() => readKey(value), value).toThrow();
    }
    for (const key of ["order-42", 'a "b" \\c', "größe, €"]) {
      expect(readKey(Buffer.from(quoteKey(key), "latin1").toString())).toBe(key);
    }
  });
});

test("BLAKE3 is that of its test vectors", () => {
  const bytes = (count: number) => Uint8Array.from({ length: count }, (_, index) => index % 251);
  const vectors: [number, string][] = [
    [0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"],
    [1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"],
    [1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"],
    [1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"],
    [1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"],
    [3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"],
    [31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"],
  ];
  for (const [count, hex] of vectors) {
    expect(blake3Hex(bytes(count)), String(count)).toBe(hex);
  }
});

describe("content", () => {
  test("text stays text, bytes that are not UTF-8 are base64, anything else is JSON", () => {
    expect(Content.of("grüße").write()).toEqual({ body: "grüße" });
    expect(Content.of(Uint8Array.of(255, 0)).write()).toEqual({ body_base64: "/wA=" });
    expect(Content.of(text("plain")).write()).toEqual({ body: "plain" });
    const json = { body: '{"a":1}', content_type: "application/json" };
    expect(Content.of({ a: 1 }).write()).toEqual(json);
    expect(Content.of(new Uint16Array([0x4241])).text).toBe("AB");
    expect(Content.of("x", "text/x").write()).toEqual({ body: "x", content_type: "text/x" });
    expect(Content.read({ body_base64: "/wA" }).bytes).toEqual(Uint8Array.of(255, 0));
    expect(() => Content.read({ body_base64: "/wA=" }).text).toThrow("not UTF-8");
    expect(() => Content.json(10n)).toThrow("cannot be written as JSON");
    expect(Content.of("\ud800").bytes.length).toBe(3);
  });

  test("a BOM is a part of the text", () => {
    expect(Content.of(text("\ufeffx")).write()).toEqual({ body: "\ufeffx" });
  });
});

test("errors have a class per code, and unknown codes count by whether a retry may help", () => {
  const conflict = errorOf({ code: "conflict", detail: "d", differs: ["body"], id: "7" });
  expect(conflict).toBeInstanceOf(ConflictError);
  expect([conflict.name, conflict.message]).toEqual(["ConflictError", "d (body differs)"]);
  const newer = errorOf({ code: "brand_new", detail: "d", retryable: true, retry_after_ms: 7 });
  expect(newer).toBeInstanceOf(UnavailableError);
  expect([newer.retryable, newer.retryAfterMs]).toEqual([true, 7]);
  expect(errorOf({ code: "toString" })).toBeInstanceOf(HapaxError);
});

test("a batch is shared out by count and size, and a large body goes alone", () => {
  const of = (count: number, bytes: number) =>
    Array.from({ length: count }, (_, index) => ({
      written: written("/queues/q", String(index), { body: "x".repeat(bytes) }),
    }));
  const counts = (places: ReturnType<typeof of>) => packed(places).map((batch) => batch.length);
  expect(counts(of(2_500, 1))).toEqual([1_000, 1_000, 500]);
  expect(counts(of(10, 1_000_000))).toEqual([8, 2]);
  const mixed = [...of(1, 1), ...of(1, 2_000_000), ...of(1, 1)];
  expect(counts(mixed)).toEqual([1, 1, 1]);
  expect(mixed.map(({ written: it }) => "raw" in it)).toEqual([false, true, false]);
  expect(packed([])).toEqual([]);
});

describe("retry", () => {
  test("pauses grow to a bound, and are as long as the broker asks for", () => {
    const retry = new Retry();
    expect(retry.nextPause(undefined)).toBeLessThanOrEqual(20);
    for (let tries = 0; tries < 20; tries += 1) {
      expect(retry.nextPause(undefined)).toBeLessThanOrEqual(5_000);
    }
    expect(retry.nextPause(undefined)).toBeGreaterThanOrEqual(2_500);
    expect(retry.nextPause(60_000)).toBe(60_000);
  });

  test("a pause past the end of the time is not begun, and an abort ends it", async () => {
    const before = now();
    expect(await new Retry(1_000).pause(3_600_000)).toBe(false);
    const controller = new AbortController();
    const paused = new Retry().pause(3_600_000, controller.signal);
    controller.abort(new Error("enough"));
    await expect(paused).rejects.toThrow("enough");
    expect(now() - before).toBeLessThan(30_000);
  });
});

describe("settles", () => {
  test("an error is told with its causes, cut to what the broker keeps, and without a stack", () => {
    const cause = new Error("connection refused");
    expect(errorText(new Error("cannot charge", { cause }))).toBe(
      "cannot charge: connection refused",
    );
    expect(errorText("plain")).toBe("plain");
    expect(errorText(undefined)).toBe("the handler threw undefined");
    const long = errorText(new Error("ä".repeat(4_096)));
    expect(Buffer.byteLength(long)).toBe(4_096);
    expect(Buffer.byteLength(errorText(new Error(`a${"ä".repeat(4_096)}`)))).toBe(4_095);
  });

  test("a failure says what happens next, and any other error may be in doubt", () => {
    const fail = { do: "fail", error: "e" };
    expect(failureOf(new Failure("e"))).toEqual(fail);
    expect(failureOf(Failure.retryIn(1.5, "e"))).toEqual({ ...fail, delay_ms: 2 });
    expect(failureOf(Failure.dead("e"))).toEqual({ ...fail, dead: true });
    expect(failureOf(Failure.inDoubt("e"))).toEqual({ do: "park", error: "e" });
    expect(failureOf(new TypeError("e"))).toEqual({ do: "park", error: "e" });
  });

  test("a result with follow-ups is written as the broker reads it", () => {
    const done = new Done({ ok: true }).emit("emails", "receipt", "Thank you!", { delayMs: 5 });
    expect(done.write()).toEqual({
      do: "done",
      result: { body: '{"ok":true}', content_type: "application/json" },
      emit: [{ queue: "emails", name: "receipt", body: "Thank you!", delay_ms: 5 }],
    });
    expect(new Done().write()).toEqual({ do: "done" });
  });
});

describe("leases", () => {
  const taken = () => {
    const leases = new Leases<Hold>();
    const hold = new Hold("seven", 10_000, 0);
    leases.take(hold);
    return { leases, hold };
  };

  test("a lease is extended in time and again", () => {
    const { leases, hold } = taken();
    expect(leases.nextDue()).toBe(4_000);
    expect(leases.due(3_000)).toEqual([]);
    expect(leases.due(4_000)).toMatchObject([{ do: "extend", lengthMs: 10_000 }]);
    leases.extended(hold, 14_000);
    expect(leases.due(7_000)).toEqual([]);
    expect(leases.due(8_000)).toMatchObject([{ do: "extend" }]);
    leases.drop(hold);
    expect([leases.size, leases.nextDue()]).toEqual([0, Number.POSITIVE_INFINITY]);
  });

  test("a lease that nobody extends is lost when its time is over", () => {
    const { leases, hold } = taken();
    expect(leases.due(5_000).length).toBe(1);
    expect(leases.due(9_000)).toEqual([]);
    expect(leases.nextDue()).toBe(10_000);
    expect(leases.due(10_000)).toMatchObject([{ do: "lose" }]);
    expect(leases.isLost(hold, 10_000)).toBe(true);
  });

  test("an extension that failed is tried again soon", () => {
    const { leases, hold } = taken();
    leases.due(4_000);
    leases.notExtended(hold, 4_100);
    expect(leases.nextDue()).toBe(5_100);
    expect(leases.due(5_100)).toMatchObject([{ do: "extend" }]);
  });

  test("an extension never asks for less than the handler did", () => {
    const { leases, hold } = taken();
    expect(leases.want(hold, 60_000, 0)).toBe(60_000);
    expect(leases.due(4_000)).toMatchObject([{ lengthMs: 56_000 }]);
    leases.granted(hold, 60_000);
    leases.extended(hold, 60_000);
    expect(leases.due(8_000)).toMatchObject([{ lengthMs: 52_000 }]);
    const other = taken();
    other.leases.want(other.hold, 60_000, 0);
    other.leases.granted(other.hold, undefined);
    expect(other.leases.want(other.hold, 1_000, 0)).toBe(10_000);
  });
});

describe("steps", () => {
  const delivery = (points: Record<string, string> = {}) => {
    const entries = Object.entries(points).map(([name, body]) => [name, { body }]);
    return new Delivery({
      ...{ lease: "l", fence: "1", queue: "orders", key: "order-42", id: "i", attempt: 1 },
      ...{ generation: 0, accepted_at: "", lease_ms: 1, deadline: "" },
      recovery_points: Object.fromEntries(entries),
    });
  };
  const key = "e009d291556b00f3135a6a1666d2f486";

  test("an outcome reads back, and an intent leaves the step open under its key", () => {
    expect(new Ledger(delivery()).take("charge")).toEqual({ key });
    const done = outcomeOf("charge", key, { n: 1 }).text;
    expect(done).toBe(`{"step":"done","key":"${key}","outcome":{"n":1}}`);
    const found = new Ledger(delivery({ "step:charge": done })).take("charge");
    expect(found).toEqual({ outcome: { n: 1 } });
    for (const open of [intentOf("old"), tooLargeOf("old", 9)]) {
      const ledger = new Ledger(delivery({ "step:charge": open.text }));
      expect(ledger.take("charge")).toEqual({ key: "old" });
    }
    const first = outcomeOf("charge", deriveFirst("order-42", 0, "charge"), undefined).text;
    const old = new Ledger(delivery({ "step:charge": first })).take("charge");
    expect(old).toEqual({ outcome: null });
  });

  test("what is no outcome of this step is told and not taken for one", () => {
    const foreign = outcomeOf("charge", "other", 1).text;
    for (const data of ["17 euro", "null", "{}", foreign]) {
      const ledger = new Ledger(delivery({ "step:charge": data }));
      expect(() => ledger.take("charge"), data).toThrow("step:charge");
    }
    expect(() => outcomeOf("charge", key, 10n)).toThrow("cannot be written as JSON");
  });

  test("a name is taken once and has a bound, and an outcome has room", () => {
    const ledger = new Ledger(delivery());
    ledger.take("charge");
    expect(() => ledger.take("charge")).toThrow("twice");
    expect(() => ledger.take("")).toThrow("1 to 123 bytes");
    const room = 64 * 1024 - "big".length - "step:a".length - 1_024;
    new Ledger(delivery({ big: "x".repeat(room) })).reserve("a");
    const full = new Ledger(delivery({ big: "x".repeat(room + 1) }));
    expect(() => full.reserve("a")).toThrow("not begun");
  });
});

describe("the HTTP layer", () => {
  const fits = (pattern: string, method: string, path: string) =>
    new Route({ pattern }).matches(method, segments(path));

  test("a route matches its methods and its path, in every usual spelling", () => {
    expect(fits("PUT,PATCH /orders/{id}", "PATCH", "/orders/7")).toBe(true);
    expect(fits("PUT,PATCH /orders/{id}", "PATCH", "/orders/7/lines")).toBe(false);
    expect(fits("POST /files/{*path}", "POST", "/files/a/b")).toBe(true);
    expect(fits("POST /files/{*path}", "POST", "/files")).toBe(false);
    for (const path of [
      "//charges",
      "/charges/",
      "/x/../charges",
      "/%63harges",
      "/x/%2e%2e/charges",
    ]) {
      expect(fits("POST /charges", "POST", path), path).toBe(true);
    }
    expect(fits("POST /größe", "POST", "/gr%C3%B6%C3%9Fe")).toBe(true);
    expect(fits("POST /charges", "POST", "/Charges")).toBe(false);
  });

  test("what some service reads as a protected path is noticed", () => {
    const route = new Route({ pattern: "POST /charges" });
    for (const path of [
      "/CHARGES",
      "/charges%2f",
      "/charges;a=b",
      "/x\\..\\charges",
      "/%2563harges",
    ]) {
      expect(route.mayMatch("POST", looseSegments(path)), path).toBe(true);
    }
    for (const path of ["/charge", "/charges/7", "/x/charges", "/"]) {
      expect(route.mayMatch("POST", looseSegments(path)), path).toBe(false);
    }
  });

  test("what is no route, and settings that cannot work, are explained", () => {
    for (const pattern of ["/charges", "POST", "post /a", "GET /a", "POST a", "POST /a//b"]) {
      expect(() => new Route({ pattern }), pattern).toThrow("is not a route");
    }
    const queue = new Client().queue("http");
    expect(() => rulesOf(queue, {})).toThrow("no route");
    expect(() => rulesOf(queue, { required: ["POST /a"], optional: ["POST /a"] })).toThrow("twice");
    expect(() => rulesOf(queue, { required: ["POST /a"], leaseMs: 1 })).toThrow("100 ms");
    const rules = rulesOf(queue, { required: ["POST /a"] });
    expect(rules.compared).toEqual(["authorization", "content-type", "cookie", "x-api-key"]);
  });

  test("a claim's key is that of the documentation", () => {
    const key = claimKey("shop", "a", "POST", "/charges", "k");
    expect(key).toBe("9f0bffd967d373335e7f3e012e9dda01a1f595e264b4b7e99a1bd0e3d68c3442");
  });

  test("a stored response is that of every layer, and what is cut or foreign is refused", () => {
    const stored = {
      status: 200,
      headers: [["etag", '"1"']] as [string, string][],
      body: text("hi"),
    };
    const bytes = encode(stored);
    expect(Buffer.from(bytes).toString("latin1")).toBe('\x01\x00\x00\xc8\x01\x04etag\x03"1"hi');
    expect(decode(bytes)).toEqual({ ...stored, body: Buffer.from("hi") });
    const large = {
      ...stored,
      headers: [["x", "y".repeat(HEADERS_BYTES_MAX)]] as [string, string][],
    };
    expect(decode(encode(large))).toEqual({ status: 200, headers: [], body: undefined });
    for (const foreign of [[2, 0, 0, 200, 0], [1, 2, 0, 200, 0], [1, 0, 0, 7, 0], [1, 0], []]) {
      expect(() => decode(Uint8Array.from(foreign))).toThrow();
    }
    const headers = new Headers({ connection: "x-hop", "x-hop": "1", date: "d", etag: "e" });
    headers.append("set-cookie", "a=b");
    expect(storedHeaders(headers, undefined)).toEqual([["etag", "e"]]);
    expect(storedHeaders(headers, new Set(["link"]))).toEqual([]);
  });
});
