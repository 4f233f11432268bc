/**
 * Inbox and outbox for PostgreSQL, with `pg` or any driver of its shape.
 *
 * @module
 */

export type { Connection, Pool, PooledConnection, Rows } from "./connection.js";
export { type Entered, Inbox, type InboxOptions } from "./inbox.js";
export { sendLater } from "./outbox.js";
export { INBOX_SCHEMA, OUTBOX_SCHEMA } from "./sql.js";
export { sweep } from "./sweep.js";
export { type TransactionHandler, TransactionWorker } from "./worker.js";
