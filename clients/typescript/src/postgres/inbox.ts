/**
 * The inbox: effect and acknowledgement in one transaction.
 *
 * A delivery first inserts its row, then makes its own writes, then stores its result in the row,
 * and commits. So a visible row belongs to a committed effect; there is no state "begun" to clean
 * up. Two deliveries at once meet at the primary key: the second waits for the first and finds its
 * row, or, if the first rolled back, inserts the row itself.
 */

import { byteLength, Content, type Payload } from "../content.js";
import type { Delivery } from "../delivery.js";
import { InvalidError } from "../errors.js";
import type { Connection } from "./connection.js";
import * as sql from "./sql.js";

/** How often a row may disappear between two statements before that is an error. */
const TRIES = 3;
/** The longest name, so that the whole primary key fits an index. */
const NAME_BYTES_MAX = 80;

/** The settings of an inbox. */
export interface InboxOptions {
  /** The tenant, by default that of the deliveries. With it, deliveries of another are refused. */
  tenant?: string | undefined;
  /**
   * The shortest time for which rows are kept, by default the queue's retention; a shorter one is
   * refused. `forever` never deletes. The row of a message that has not ended is kept in any case.
   */
  retentionMs?: number | "forever" | undefined;
}

/** Whether a message was processed before, and with which result. */
export type Entered = { first: true } | { first: false; result: Content | undefined };

/**
 * The inbox of one consumer for one queue. The consumer is the part of a program whose effects are
 * counted as one: all processes of one service are one consumer, two services that both act on a
 * message are two. The rows are in the user's database, and every call gets the user's transaction.
 *
 * ```ts
 * const inbox = new Inbox("billing", "orders");
 * await connection.query("BEGIN");
 * const entered = await inbox.enter(connection, message);
 * if (entered.first) {
 *   await connection.query("UPDATE accounts SET euro = euro - 17");
 *   await inbox.finish(connection, message, "charged");
 *   await connection.query("COMMIT"); // Then settle done with "charged".
 * } else {
 *   await connection.query("ROLLBACK"); // Settle done with entered.result.
 * }
 * ```
 */
export class Inbox {
  readonly consumer: string;
  readonly queue: string;
  readonly retentionMs: number | "forever" | undefined;
  readonly #ownTenant: string | undefined;
  #learntTenant: string | undefined;

  constructor(consumer: string, queue: string, options: InboxOptions = {}) {
    const names = { consumer, queue, ...(options.tenant ? { tenant: options.tenant } : {}) };
    for (const [what, name] of Object.entries(names)) {
      const bytes = byteLength(name);
      if (bytes < 1 || bytes > NAME_BYTES_MAX) {
        const detail = `the name of a ${what} has 1 to ${NAME_BYTES_MAX} bytes, ${name} has ${bytes}`;
        throw new InvalidError(detail);
      }
    }
    this.consumer = consumer;
    this.queue = queue;
    this.retentionMs = options.retentionMs;
    this.#ownTenant = options.tenant;
  }

  /** The tenant, if it was given or a delivery has arrived. */
  get tenant(): string | undefined {
    return this.#ownTenant ?? this.#learntTenant;
  }

  /**
   * Inserts the row: the first statement of a transaction, before any other write. If the message is
   * not new, roll back and settle done with the result.
   */
  async enter(connection: Connection, delivery: Delivery): Promise<Entered> {
    const row = this.row(delivery);
    for (let tries = 0; tries < TRIES; tries += 1) {
      if ((await connection.query(sql.ENTER, row)).rowCount === 1) {
        return { first: true };
      }
      const [found] = (await connection.query(sql.FOUND, row.slice(0, 6))).rows;
      if (found !== undefined) {
        return { first: false, result: resultOf(found) };
      }
    }
    throw new InvalidError(
      `the inbox row of ${delivery.key} was deleted while its message was being delivered: check ` +
        "who deletes from the table",
    );
  }

  /**
   * Stores the result, or that there is none: the last statement before the commit, and required.
   * PostgreSQL answers the COMMIT of a transaction in which a statement failed with a rollback, and
   * reports no error; this call fails there.
   */
  async finish(connection: Connection, delivery: Delivery, result?: Payload): Promise<void> {
    const content = result === undefined || result === null ? undefined : Content.of(result);
    const bytes = content === undefined ? null : Buffer.from(content.bytes);
    const values = [...this.row(delivery), bytes, content?.contentType ?? null];
    if ((await connection.query(sql.FINISH, values)).rowCount !== 1) {
      const detail = "is finished in another transaction than the one that entered it";
      throw new InvalidError(`${delivery.key} ${detail}`);
    }
  }

  /** Throws if a delivery belongs to another tenant than the inbox. @internal */
  tenantOf(delivery: Delivery): string {
    const told = delivery.tenant === "" ? undefined : delivery.tenant;
    if (this.#ownTenant === undefined && told !== undefined) {
      this.#learntTenant ??= told;
    }
    const known = this.tenant;
    if (known !== undefined && told !== undefined && known !== told) {
      throw new InvalidError(
        `the inbox ${this.consumer} belongs to the tenant ${known}, but ${delivery.key} belongs to ` +
          `the tenant ${told}: use one inbox per tenant`,
      );
    }
    return known ?? "default";
  }

  /** The primary key of a row and its fence. */
  private row(delivery: Delivery): unknown[] {
    // A message without a key, which at-least-once queues allow, is identified by its id.
    const key = delivery.key === "" ? delivery.id : delivery.key;
    const { generation, fence } = delivery;
    const tenant = this.tenantOf(delivery);
    return [this.consumer, tenant, this.queue, key, delivery.group ?? "", generation, fence];
  }
}

function resultOf(row: { result: Uint8Array | null; result_type: string | null }) {
  return row.result === null ? undefined : new Content(row.result, row.result_type);
}
