/** Brokers and workers that are killed, at any moment: at the end everything was done once. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { INBOX_SCHEMA } from "../src/postgres/index.js";
import { useBroker } from "../src/vitest.js";
import { hasPostgres, Postgres } from "./support/postgres.js";
import { Child } from "./support/processes.js";
import { until } from "./support/wait.js";

const PAYMENTS = 60;
const KILLS = 6;
const program = fileURLToPath(new URL("programs/worker.mjs", import.meta.url));

/** A service that takes keys: it charges once for each, and loses some of its answers. */
async function bank() {
  const charges = new Map<string, string>();
  let calls = 0;
  let written = 0;
  const server = createServer((request, response) => {
    request.resume();
    if (request.url === "/written") {
      written += 1;
      response.end();
      return;
    }
    calls += 1;
    const key = String(request.headers["idempotency-key"]);
    const receipt = charges.get(key) ?? `receipt-${charges.size + 1}`;
    charges.set(key, receipt);
    if (calls % 7 === 0) {
      response.destroy();
    } else {
      response.end(receipt);
    }
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    charges,
    calls: () => calls,
    written: () => written,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

describe.skipIf(!hasPostgres())("kill -9", () => {
  const hapax = useBroker();

  test("of the broker and of the workers: every payment is charged and written once", async () => {
    const postgres = await Postgres.start();
    const database = await postgres.database();
    const service = await bank();
    const workers: Child[] = [];
    try {
      await database.pool.query(INBOX_SCHEMA);
      await database.pool.query("CREATE TABLE payments (order_key text, receipt text)");
      const payments = hapax.client().queue("payments");
      const config = { backoff_min_ms: 1, backoff_max_ms: 100, max_attempts: 1_000 };
      await payments.admin.put(config);
      const start = (): Child => {
        const places = [hapax.url, service.url, postgres.directory, database.name];
        return new Child(process.execPath, [program, ...places]);
      };
      workers.push(start(), start());
      const sending = Promise.all(
        Array.from({ length: PAYMENTS }, (_, n) => payments.send("17 euro", { key: `order-${n}` })),
      );
      for (let kill = 0; kill < KILLS; kill += 1) {
        const before = service.written();
        const isOver = (): boolean => service.charges.size >= PAYMENTS;
        await until("progress", () => service.written() > before + 2 || isOver());
        if (kill % 3 === 2) {
          await hapax.broker.kill();
          await hapax.broker.start();
        } else {
          await workers[kill % 2]?.kill();
          workers[kill % 2] = start();
        }
      }
      await sending;
      // Every one of them is sent again, as by a client that saw no answer.
      const again = Array.from({ length: PAYMENTS }, (_, n) =>
        payments.sendAndWait("17 euro", { key: `order-${n}`, waitMs: 240_000 }),
      );
      const answers = await Promise.all(again);
      expect(answers.filter(({ answer }) => answer !== "done")).toEqual([]);
      const receipts = new Set(answers.map(({ result }) => result?.text));
      expect(receipts.size).toBe(PAYMENTS);
      expect(service.charges.size).toBe(PAYMENTS);
      expect(service.calls()).toBeGreaterThan(PAYMENTS);
      expect(await database.number("SELECT count(*) FROM payments")).toBe(PAYMENTS);
      const written = await database.number("SELECT count(DISTINCT receipt) FROM payments");
      expect(written).toBe(PAYMENTS);
      const stopped = await Promise.all(workers.map((worker) => worker.stop()));
      expect(stopped, workers.map(({ errors }) => errors).join()).toEqual([0, 0]);
    } finally {
      await Promise.all(workers.map((worker) => worker.kill()));
      service.close();
      await database.end();
      await postgres.stop();
    }
  });
});
