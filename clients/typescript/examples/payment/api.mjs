// The API: POST /orders, behind the idempotency layer. An order and its message are one transaction.
import { serve } from "@hono/node-server";
import { Client } from "hapax";
import { Idempotency } from "hapax/http";
import { INBOX_SCHEMA, OUTBOX_SCHEMA, sendLater } from "hapax/postgres";
import { Hono } from "hono";
import pg from "pg";

const client = new Client(process.env.HAPAX_SERVER);
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
pool.on("error", () => undefined); // A broken idle connection is replaced.

await pool.query(INBOX_SCHEMA);
await pool.query(OUTBOX_SCHEMA);
await pool.query("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents integer NOT NULL)");
await pool.query("CREATE TABLE IF NOT EXISTS payments (id text, receipt text)");
await client.queue("http").admin.put();
await client.queue("orders").admin.put({ backoff_min_ms: 100 });

const idempotency = new Idempotency(client.queue("http"), {
  required: ["POST /orders"],
  leaseMs: 2_000, // A process that dies frees its keys after this.
});

/** @type {Hono<{ Variables: { operation: import("hapax/http").Operation } }>} */
const app = new Hono();
app.use(idempotency.hono());
app.post("/orders", async (c) => {
  const { cents } = await c.req.json();
  const id = c.get("operation").key;
  const connection = await pool.connect();
  try {
    await connection.query("BEGIN");
    // A process that died after its commit left the order here, and the message in the outbox.
    const insert = "INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING";
    const { rowCount } = await connection.query(insert, [id, cents]);
    if (rowCount === 1) {
      await sendLater(connection, "orders", { cents }, { key: id });
    }
    await connection.query("COMMIT");
    connection.release();
  } catch (error) {
    connection.release(true); // Closed, so the server rolls back.
    throw error;
  }
  return c.json({ id, cents }, 201);
});

const port = Number(process.env.PORT ?? 4800);
const server = serve({ fetch: app.fetch, port, hostname: "127.0.0.1" }, (address) => {
  console.log(`http://127.0.0.1:${address.port}`);
});
process.once("SIGTERM", async () => {
  server.close();
  await idempotency.drained(10_000);
  await pool.end();
});
