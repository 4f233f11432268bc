/**
 * Workers whose handlers run in a transaction of the user's database.
 *
 * For every message the worker takes the same steps: begin, enter, run the handler, store the
 * result, commit, settle. A handler that fails rolls everything back, with the row, and fails the
 * attempt. A message that was processed before is settled with the stored result, and its handler is
 * not called.
 */

import { Content, type Payload } from "../content.js";
import type { Delivery } from "../delivery.js";
import { HapaxError } from "../errors.js";
import type { Queue } from "../queue.js";
import { sleep } from "../retry.js";
import { Failure } from "../settle.js";
import type { Context } from "../worker/context.js";
import { type Health, Worker, type WorkerOptions } from "../worker/worker.js";
import type { Pool, PooledConnection } from "./connection.js";
import { type Entered, Inbox, type InboxOptions } from "./inbox.js";
import { checkTable, rulesOf, sweep } from "./sweep.js";

/** How often old rows are deleted. */
const SWEEP_EVERY_MS = 600_000;
/** The same, until the first delivery shows the tenant. */
const LEARN_EVERY_MS = 10_000;

/**
 * Handles one message in a transaction. What it writes on the connection happens once per message;
 * anything else that it does is repeated with every attempt. It returns a result, and no `Done`: a
 * follow-up message goes into the outbox, in the same transaction.
 */
export type TransactionHandler<C> = (
  connection: C,
  message: Delivery,
  context: Context,
) => Result | Promise<Result>;

// biome-ignore lint/suspicious/noConfusingVoidType: a function that returns nothing is a handler
type Result = Payload | undefined | void;

/**
 * A worker whose handlers run in transactions, with an inbox.
 *
 * ```ts
 * const worker = new TransactionWorker(orders, pool, "billing", async (connection, message) => {
 *   await connection.query("UPDATE accounts SET euro = euro - 17 WHERE name = $1", [message.text]);
 *   return "17 euro taken";
 * });
 * await worker.run();
 * ```
 */
export class TransactionWorker<C extends PooledConnection> {
  readonly inbox: Inbox;
  readonly #queue: Queue;
  readonly #pool: Pool<C>;
  readonly #handler: TransactionHandler<C>;
  readonly #worker: Worker;
  #resultBytesMax = 0;
  #refusal: unknown;

  constructor(
    queue: Queue,
    pool: Pool<C>,
    consumer: string,
    handler: TransactionHandler<C>,
    options: WorkerOptions & InboxOptions = {},
  ) {
    const { tenant, retentionMs, ...rest } = options;
    this.inbox = new Inbox(consumer, queue.name, { tenant, retentionMs });
    this.#queue = queue;
    this.#pool = pool;
    this.#handler = handler;
    this.#worker = new Worker(queue, (message, context) => this.#handle(message, context), rest);
  }

  /** Runs until it is stopped, or until a permanent error: see {@link Worker.run}. */
  async run(options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    await this.#check(options.signal);
    const sweeping = new AbortController();
    const swept = this.#sweep(sweeping.signal);
    try {
      await this.#worker.run(options);
    } finally {
      sweeping.abort();
      await swept;
    }
    if (this.#refusal !== undefined) {
      throw this.#refusal;
    }
  }

  stop(options: { drainMs?: number | undefined } = {}): void {
    this.#worker.stop(options);
  }

  health(): Health {
    return this.#worker.health();
  }

  /** Fails now, and not with every message, if the table is missing or the retention too short. */
  async #check(signal: AbortSignal | undefined): Promise<void> {
    await this.#rules(signal);
    const connection = await this.#pool.connect();
    try {
      await checkTable(connection, this.inbox);
    } finally {
      connection.release();
    }
  }

  async #rules(signal?: AbortSignal): Promise<void> {
    const rules = await rulesOf(this.inbox, this.#queue, { signal });
    this.#resultBytesMax = rules.resultBytesMax;
  }

  async #sweep(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await sweep(this.#pool, this.inbox, this.#queue, { signal });
        await this.#rules(signal);
      } catch {
        // Rows that are not deleted now are deleted the next time.
      }
      const pause = this.inbox.tenant === undefined ? LEARN_EVERY_MS : SWEEP_EVERY_MS;
      await sleep(pause, signal).catch(() => undefined);
    }
  }

  async #handle(message: Delivery, context: Context): Promise<Content | undefined> {
    try {
      this.inbox.tenantOf(message);
    } catch (error) {
      // Every message would fail until it is dead.
      this.#refusal = error;
      this.stop();
      throw new Failure((error as Error).message);
    }
    const connection = await begun(this.#pool);
    let entered: Entered;
    let finished: Content | undefined;
    try {
      entered = await this.inbox.enter(connection, message);
      if (entered.first) {
        finished = contentOf(await this.#handler(connection, message, context));
        await this.#checkSize(finished);
        await this.inbox.finish(connection, message, finished);
      }
    } catch (error) {
      await ended(connection, "ROLLBACK").catch(() => undefined);
      throw error;
    }
    if (!entered.first) {
      // The message is done whether or not the empty transaction can be rolled back.
      await ended(connection, "ROLLBACK").catch(() => undefined);
      return this.#before(entered.result);
    }
    try {
      await ended(connection, "COMMIT");
    } catch (error) {
      return this.#lookUp(message, error);
    }
    return finished;
  }

  /** A result that the queue refuses is noticed while the effect can still be rolled back. */
  async #checkSize(result: Content | undefined): Promise<void> {
    const bytes = result?.length ?? 0;
    if (bytes > this.#resultBytesMax) {
      await this.#rules();
    }
    if (bytes > this.#resultBytesMax) {
      const most = this.#resultBytesMax;
      const detail = `the result has ${bytes} bytes, the queue allows ${most}; nothing was written`;
      throw Failure.dead(detail);
    }
  }

  /**
   * The result of a message that was processed before. One that is now too large for the queue is
   * left out, because a refusal would keep the message from being done.
   */
  async #before(result: Content | undefined): Promise<Content | undefined> {
    if (result !== undefined && result.length > this.#resultBytesMax) {
      await this.#rules().catch((error: unknown) => {
        if (!(error instanceof HapaxError)) {
          throw error;
        }
      });
    }
    return (result?.length ?? 0) > this.#resultBytesMax ? undefined : result;
  }

  /** Asks the database for the outcome of a commit whose answer was lost. */
  async #lookUp(message: Delivery, error: unknown): Promise<Content | undefined> {
    const connection = await begun(this.#pool);
    try {
      // The insert waits for a commit that is still under way.
      const entered = await this.inbox.enter(connection, message);
      if (entered.first) {
        throw error;
      }
      return entered.result;
    } finally {
      await ended(connection, "ROLLBACK").catch(() => undefined);
    }
  }
}

function contentOf(result: Result): Content | undefined {
  return result === undefined || result === null ? undefined : Content.of(result as Payload);
}

async function begun<C extends PooledConnection>(pool: Pool<C>): Promise<C> {
  const connection = await pool.connect();
  // A connection that breaks also fails its next statement: the event alone must not end the process.
  connection.on?.("error", ignore);
  try {
    await connection.query("BEGIN");
  } catch (error) {
    released(connection, true);
    throw error;
  }
  return connection;
}

/** Ends a transaction and gives its connection back; one that cannot be ended is closed. */
async function ended(connection: PooledConnection, how: "COMMIT" | "ROLLBACK"): Promise<void> {
  try {
    await connection.query(how);
    released(connection, false);
  } catch (error) {
    released(connection, true);
    throw error;
  }
}

function released(connection: PooledConnection, isBroken: boolean): void {
  connection.removeListener?.("error", ignore);
  connection.release(isBroken);
}

function ignore(): void {
  // The statement that is under way reports it.
}
