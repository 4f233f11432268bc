/**
 * A worker that is killed by its test: it charges at a service that takes keys, in a step, and writes
 * the payment into a database with an inbox. Arguments: the broker, the service, the database.
 */

import { Client } from "hapax";
import { TransactionWorker } from "hapax/postgres";
import pg from "pg";

const [broker, bank, host, database] = process.argv.slice(2);
const pool = new pg.Pool({ host, database, user: "postgres" });
pool.on("error", () => undefined);

const worker = new TransactionWorker(
  new Client(broker).queue("payments"),
  pool,
  "payments",
  async (connection, message, context) => {
    const receipt = await context.step("charge", async (key, signal) => {
      const headers = { "idempotency-key": key };
      const reply = await fetch(`${bank}/charge`, { method: "POST", headers, signal });
      if (!reply.ok) {
        throw new Error(`the bank answers ${reply.status}`);
      }
      return reply.text();
    });
    await connection.query("INSERT INTO payments VALUES ($1, $2)", [message.key, receipt]);
    // Here its test may kill it: after the charge, before or after the commit.
    await fetch(`${bank}/written`, { method: "POST" });
    return receipt;
  },
  { concurrency: 4, leaseMs: 1_000 },
);
process.once("SIGTERM", () => worker.stop());
await worker.run();
await pool.end();
