// The worker: charges an order at the bank in a step, and writes the payment down with an inbox.
import { Client, Failure } from "hapax";
import { TransactionWorker } from "hapax/postgres";
import pg from "pg";

const bank = process.env.BANK ?? "http://127.0.0.1:4801";
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
pool.on("error", () => undefined);

/**
 * @param {string} key
 * @param {number} cents
 * @param {AbortSignal} signal
 */
async function charge(key, cents, signal) {
  const headers = { "idempotency-key": key, "content-type": "application/json" };
  const body = JSON.stringify({ cents });
  const reply = await fetch(`${bank}/charges`, { method: "POST", headers, body, signal });
  if (reply.status === 503) {
    throw Failure.retryIn(1_000, "the bank is closed");
  }
  const { receipt } = /** @type {{ receipt: string }} */ (await reply.json());
  return receipt;
}

const orders = new Client(process.env.HAPAX_SERVER).queue("orders");
const worker = new TransactionWorker(
  orders,
  pool,
  "payments",
  async (connection, message, context) => {
    const { cents } = /** @type {{ cents: number }} */ (message.json());
    // Killed after the charge, the next attempt asks under the same key and gets the same receipt.
    const receipt = await context.step("charge", (key, signal) => charge(key, cents, signal));
    // Killed after the commit, the next attempt finds the row of the inbox and writes nothing.
    await connection.query("INSERT INTO payments VALUES ($1, $2)", [message.key, receipt]);
    return receipt;
  },
  { concurrency: 4, leaseMs: 2_000 },
);
process.once("SIGTERM", () => worker.stop());
await worker.run();
await pool.end();
