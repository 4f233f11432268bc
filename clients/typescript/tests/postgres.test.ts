/** Inbox and outbox on a PostgreSQL of the tests' own, with the real broker and its relay. */

import { execFileSync } from "node:child_process";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Delivery, Failure, type Queue } from "../src/index.js";
import { Inbox, sendLater, sweep, TransactionWorker } from "../src/postgres/index.js";
import * as sql from "../src/postgres/sql.js";
import { useBroker } from "../src/vitest.js";
import { type Database, hasPostgres, Postgres } from "./support/postgres.js";
import { Child } from "./support/processes.js";
import { until } from "./support/wait.js";

const program = process.env.HAPAX_BIN ?? "hapax";

describe.skipIf(!hasPostgres())("PostgreSQL", () => {
  const hapax = useBroker();
  let postgres: Postgres;
  let database: Database;
  let queues = 0;

  beforeAll(async () => {
    postgres = await Postgres.start();
    database = await postgres.database();
    await database.pool.query(sql.INBOX_SCHEMA);
    await database.pool.query(sql.INBOX_SCHEMA);
    await database.pool.query(sql.OUTBOX_SCHEMA);
    await database.pool.query("CREATE TABLE effects (message text, what text)");
  });

  afterAll(async () => {
    await database?.end();
    await postgres?.stop();
  });

  async function queue(config = {}): Promise<Queue> {
    queues += 1;
    const made = hapax.client().queue(`inbox-${queues}`);
    await made.admin.put({ backoff_min_ms: 1, backoff_max_ms: 50, ...config });
    return made;
  }

  const effects = (queue: Queue, key: string): Promise<number> =>
    database.number(`SELECT count(*) FROM effects WHERE message = '${queue.name}/${key}'`);

  const write = (message: Delivery): [string, string[]] => [
    "INSERT INTO effects VALUES ($1, $2)",
    [`${message.queue}/${message.key}`, `attempt ${message.attempt}`],
  ];

  async function received(queue: Queue): Promise<Delivery> {
    const [delivery] = await queue.receive({ max: 1, waitMs: 20_000 });
    if (delivery === undefined) {
      throw new Error("nothing came");
    }
    return delivery;
  }

  test("the statements are those that `hapax sql` prints", () => {
    const printed = (page: string): string =>
      execFileSync(program, ["sql", page, "--dialect", "postgres"], { encoding: "utf8", env: {} });
    const inbox = printed("inbox");
    expect(inbox.startsWith(sql.INBOX_SCHEMA)).toBe(true);
    const outbox = printed("outbox");
    expect(outbox.startsWith(sql.OUTBOX_SCHEMA)).toBe(true);
    const statements = (page: string): string => page.replace(/^--( {5})?/gm, "");
    for (const statement of [sql.ENTER, sql.FOUND, sql.FINISH, sql.OLD, sql.SWEEP]) {
      expect(statements(inbox)).toContain(statement);
    }
    expect(statements(outbox)).toContain(sql.SEND);
  });

  test("an effect happens once, and the second delivery gets the first result", async () => {
    const orders = await queue({ lease_ms: 1_000 });
    await orders.send("x", { key: "a" });
    const first = await received(orders);
    const inbox = new Inbox("billing", orders.name);
    const connection = await database.pool.connect();
    await connection.query("BEGIN");
    expect(await inbox.enter(connection, first)).toEqual({ first: true });
    await connection.query(...write(first));
    await inbox.finish(connection, first, { taken: 17 });
    await connection.query("COMMIT");
    connection.release();
    // The worker dies here, and another one comes.
    const worker = new TransactionWorker(orders, database.pool, "billing", async (tx, message) => {
      await tx.query(...write(message));
      return "twice";
    });
    const running = worker.run();
    const answer = await orders.sendAndWait("x", { key: "a", waitMs: 30_000 });
    worker.stop();
    await running;
    expect(answer.answer).toBe("done");
    expect(answer.result?.json()).toEqual({ taken: 17 });
    expect(answer.result?.contentType).toBe("application/json");
    expect(await effects(orders, "a")).toBe(1);
  });

  test("a handler that fails, and one that ignores a failed statement, write nothing", async () => {
    const orders = await queue();
    const worker = new TransactionWorker(orders, database.pool, "billing", async (tx, message) => {
      await tx.query(...write(message));
      if (message.attempt === 1) {
        throw new Failure("not today", { retryInMs: 1 });
      }
      if (message.attempt === 2) {
        await tx.query("SELECT 1 / 0").catch(() => undefined);
      }
      return `attempt ${message.attempt}`;
    });
    const running = worker.run();
    const answer = await orders.sendAndWait("x", { key: "a", waitMs: 30_000 });
    worker.stop();
    await running;
    expect(answer.result?.text).toBe("attempt 3");
    expect(await effects(orders, "a")).toBe(1);
  });

  test("a result that is too large writes nothing, and the message is dead", async () => {
    const orders = await queue({ max_body_bytes: 8 });
    const worker = new TransactionWorker(orders, database.pool, "billing", async (tx, message) => {
      await tx.query(...write(message));
      return "more than eight bytes";
    });
    const running = worker.run();
    const answer = await orders.sendAndWait("x", { key: "a", waitMs: 30_000 });
    worker.stop();
    await running;
    expect([answer.answer, answer.attempts]).toEqual(["dead", 1]);
    expect(await effects(orders, "a")).toBe(0);
  });

  test("a connection that breaks in the middle fails the attempt and not the process", async () => {
    const orders = await queue();
    const worker = new TransactionWorker(orders, database.pool, "billing", async (tx, message) => {
      await tx.query(...write(message));
      if (message.attempt === 1) {
        await database.pool.query(
          "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'",
        );
      }
      return "ok";
    });
    const running = worker.run();
    const answer = await orders.sendAndWait("x", { key: "a", waitMs: 30_000 });
    worker.stop();
    await running;
    expect([answer.answer, answer.attempts]).toEqual(["done", 2]);
    expect(await effects(orders, "a")).toBe(1);
  });

  test("a worker without its table, or with a short memory, does not start", async () => {
    const orders = await queue();
    const empty = await postgres.database();
    const nothing = async (): Promise<void> => undefined;
    const worker = new TransactionWorker(orders, empty.pool, "billing", nothing);
    await expect(worker.run()).rejects.toThrow("hapax_inbox");
    await empty.end();
    const short = new TransactionWorker(orders, database.pool, "billing", nothing, {
      retentionMs: 1_000,
    });
    await expect(short.run()).rejects.toThrow("for 604800000 ms");
    expect(() => new Inbox("x".repeat(81), "orders")).toThrow("1 to 80 bytes");
  });

  test("a worker of another tenant stops at its first message", async () => {
    const orders = await queue();
    await orders.send("x", { key: "a" });
    const nothing = async (): Promise<void> => undefined;
    const options = { tenant: "acme" };
    const worker = new TransactionWorker(orders, database.pool, "billing", nothing, options);
    await expect(worker.run()).rejects.toThrow("belongs to the tenant acme");
    expect((await orders.key("a")).state).not.toBe("done");
  });

  test("only rows whose message has ended are swept", async () => {
    const orders = await queue({ retention_ms: 1_000, retry_horizon_ms: 500 });
    const other = await queue();
    const inbox = new Inbox("sweeper", orders.name);
    await orders.send("x", { key: "open" });
    await orders.send("x", { key: "done" });
    const deliveries = await orders.receive({ max: 2, waitMs: 20_000 });
    expect(deliveries.length).toBe(2);
    for (const delivery of deliveries) {
      const connection = await database.pool.connect();
      await connection.query("BEGIN");
      await inbox.enter(connection, delivery);
      await inbox.finish(connection, delivery);
      await connection.query("COMMIT");
      connection.release();
    }
    const done = deliveries.find(({ key }) => key === "done");
    await orders.settle([{ lease: done?.lease ?? "", do: "done" }]);
    let swept = 0;
    await until("the sweep", async () => {
      swept += await sweep(database.pool, inbox, orders);
      return swept > 0;
    });
    expect(swept).toBe(1);
    const { rows } = await database.pool.query(
      "SELECT message_key FROM hapax_inbox WHERE consumer = 'sweeper'",
    );
    expect(rows).toEqual([{ message_key: "open" }]);
    expect(await sweep(database.pool, new Inbox("nobody", other.name), other)).toBe(0);
  });

  test("a message of the outbox is sent if its transaction commits, and once", async () => {
    const orders = await queue();
    const connection = await database.pool.connect();
    await connection.query("BEGIN");
    await sendLater(connection, orders.name, "never", { key: "rolled-back" });
    await connection.query("ROLLBACK");
    await connection.query("BEGIN");
    const options = { key: "kept", group: "g", headers: { Region: "eu" }, contentType: "text/x" };
    await sendLater(connection, orders.name, Uint8Array.of(0, 255), options);
    const generated = await sendLater(connection, orders.name, { n: 1 });
    await expect(sendLater(connection, orders.name, "x", { key: "" })).rejects.toThrow("1 to 255");
    await connection.query("COMMIT");
    connection.release();
    const relay = ["relay", "--server", hapax.url, "--database", database.url];
    const child = new Child(program, relay);
    try {
      await until("the relay", () =>
        database.number("SELECT count(*) FROM hapax_outbox").then((left) => left === 0),
      );
    } finally {
      await child.kill();
    }
    const deliveries = await orders.receive({ max: 10, waitMs: 20_000 });
    expect(deliveries.map(({ key }) => key).sort()).toEqual([generated, "kept"].sort());
    const kept = deliveries.find(({ key }) => key === "kept");
    expect(kept?.body).toEqual(Uint8Array.of(0, 255));
    expect([kept?.group, kept?.contentType, kept?.headers.Region]).toEqual(["g", "text/x", "eu"]);
    const other = deliveries.find(({ key }) => key === generated);
    expect([other?.json(), other?.contentType]).toEqual([{ n: 1 }, "application/json"]);
  });
});
