/**
 * The sweep: deletes the rows whose message has ended, and no other.
 *
 * A message that was processed and not settled may wait in its queue for any time, so the age of a
 * row only decides when the broker is asked whether the message can still be delivered.
 */

import type { CallOptions } from "../client.js";
import { InvalidError, NoSuchKeyError, NoSuchQueueError } from "../errors.js";
import type { Queue } from "../queue.js";
import { sleep } from "../retry.js";
import type { Connection, Pool } from "./connection.js";
import type { Inbox } from "./inbox.js";
import * as sql from "./sql.js";

/** The most rows that are read, and deleted, at once. */
const PAGE = 1_000;
/** Concurrent requests to the broker. */
const ASKED_AT_ONCE = 16;
/** The pause between two pages, for other writers. */
const PAUSE_MS = 50;
/** Older than any row: a hundred years. */
const OLDEST_MS = 100 * 366 * 24 * 60 * 60 * 1_000;

interface Old {
  message_key: string;
  message_group: string;
  generation: number;
  fence: string;
  entered: string;
}

/** What a queue's configuration means to its inbox. */
export interface Rules {
  /** Younger rows are kept, also those of messages that have ended. `undefined` is for ever. */
  keptMs: number | undefined;
  resultBytesMax: number;
  /** Whether messages may come without a key; the broker cannot be asked about those. */
  allowsNoKey: boolean;
  /** Whether the queue had no message that could still be delivered. */
  isEmpty: boolean;
}

/** Reads the rules from the broker. An inbox that would forget before its queue is an error. */
export async function rulesOf(
  inbox: Inbox,
  queue: Queue,
  options: CallOptions = {},
): Promise<Rules> {
  const { config, stats } = await queue.admin.get(options);
  const left = stats.ready + stats.delayed + stats.leased + stats.parked + stats.dead;
  return {
    keptMs: keptMs(inbox, config.retention_ms),
    resultBytesMax: config.max_body_bytes,
    allowsNoKey: config.guarantee !== "exactly-once",
    isEmpty: left === 0,
  };
}

function keptMs(inbox: Inbox, neededMs: number | null): number | undefined {
  const wanted = inbox.retentionMs;
  if (wanted === "forever") {
    return undefined;
  }
  if (wanted === undefined) {
    return neededMs ?? undefined;
  }
  if (neededMs === null || wanted < neededMs) {
    throw new InvalidError(
      `the inbox ${inbox.consumer} keeps its rows for ${wanted} ms, but the queue ${inbox.queue} ` +
        `remembers its keys ${neededMs === null ? "for ever" : `for ${neededMs} ms`}: a message ` +
        "could be delivered again after its row is gone",
    );
  }
  return wanted;
}

/** Fails if the table does not exist, before the first message is received. */
export async function checkTable(connection: Connection, inbox: Inbox): Promise<void> {
  await oldRows(connection, inbox, "default", OLDEST_MS, undefined, 0);
}

/**
 * Deletes the rows of an inbox that are older than the queue's retention, or the inbox's own, and
 * whose message has ended. Returns how many. Workers call it by themselves; call it from time to
 * time in a loop of your own.
 */
export async function sweep(
  pool: Pool,
  inbox: Inbox,
  queue: Queue,
  options: CallOptions = {},
): Promise<number> {
  const rules = await rulesOf(inbox, queue, options);
  const { tenant } = inbox;
  if (rules.keptMs === undefined || tenant === undefined) {
    return 0; // Without a tenant the rows might belong to another one.
  }
  let swept = 0;
  let after: Old | undefined;
  for (;;) {
    const { keptMs } = rules;
    const old = await withConnection(pool, (connection) =>
      oldRows(connection, inbox, tenant, keptMs, after, PAGE),
    );
    const ended = await endedOf(rules, queue, old, options);
    swept += await withConnection(pool, (connection) => remove(connection, inbox, tenant, ended));
    after = old.at(-1);
    if (old.length < PAGE) {
      return swept;
    }
    await sleep(PAUSE_MS, options.signal);
  }
}

async function oldRows(
  connection: Connection,
  inbox: Inbox,
  tenant: string,
  olderMs: number,
  after: Old | undefined,
  most: number,
): Promise<Old[]> {
  const last = [after?.entered ?? 0, after?.message_key ?? "", after?.message_group ?? ""];
  const names = [inbox.consumer, tenant, inbox.queue];
  const values = [...names, olderMs, ...last, after?.generation ?? 0, most];
  const { rows } = await connection.query(sql.OLD, values);
  // The fifth column has the name that PostgreSQL gives to it.
  return rows.map((row: Old & { int8?: string }) => ({ ...row, entered: row.int8 ?? "0" }));
}

async function remove(
  connection: Connection,
  inbox: Inbox,
  tenant: string,
  rows: Old[],
): Promise<number> {
  let count = 0;
  for (const row of rows) {
    const { message_key, message_group, generation, fence } = row;
    const names = [inbox.consumer, tenant, inbox.queue];
    const values = [...names, message_key, message_group, generation, fence];
    count += (await connection.query(sql.SWEEP, values)).rowCount ?? 0;
  }
  return count;
}

/** The rows whose message cannot be delivered again. */
async function endedOf(
  rules: Rules,
  queue: Queue,
  rows: Old[],
  options: CallOptions,
): Promise<Old[]> {
  const ended: Old[] = [];
  let next = 0;
  const ask = async (): Promise<void> => {
    while (next < rows.length) {
      const row = rows[next] as Old;
      next += 1;
      if (await hasEnded(rules, queue, row, options)) {
        ended.push(row);
      }
    }
  };
  await Promise.all(Array.from({ length: ASKED_AT_ONCE }, ask));
  return ended;
}

async function hasEnded(
  rules: Rules,
  queue: Queue,
  row: Old,
  options: CallOptions,
): Promise<boolean> {
  const group = row.message_group === "" ? undefined : row.message_group;
  try {
    const { state, generation } = await queue.key(row.message_key, { ...options, group });
    return state === "done" || state === "discarded" || generation > row.generation;
  } catch (error) {
    if (error instanceof NoSuchQueueError) {
      return true;
    }
    if (error instanceof NoSuchKeyError) {
      // It may be the id of a message without a key, which the broker cannot be asked about.
      return (
        !(
          rules.allowsNoKey && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(row.message_key)
        ) || rules.isEmpty
      );
    }
    throw error;
  }
}

async function withConnection<T>(
  pool: Pool,
  use: (connection: Connection) => Promise<T>,
): Promise<T> {
  const connection = await pool.connect();
  try {
    const result = await use(connection);
    connection.release();
    return result;
  } catch (error) {
    connection.release(true);
    throw error;
  }
}
