/**
 * The outbox: state and send in one transaction.
 *
 * A message is a row that is written in the user's own transaction, so it exists if and only if the
 * transaction commits. `hapax relay` sends it to the broker under its key.
 */

import { Content, type Payload } from "../content.js";
import { InvalidError } from "../errors.js";
import { checkKey, newKey } from "../keys.js";
import { type MessageOptions, wholeMs } from "../message.js";
import type { Connection } from "./connection.js";
import * as sql from "./sql.js";

/**
 * Writes a message for a queue into the outbox, in the transaction of this connection. Returns its
 * key, which is generated if the message has none. What every broker would refuse is refused here,
 * while the transaction can still be rolled back.
 *
 * ```ts
 * await connection.query("BEGIN");
 * await connection.query("INSERT INTO orders VALUES (42, 'lemons')");
 * await sendLater(connection, "orders", "three lemons", { key: "order-42" });
 * await connection.query("COMMIT");
 * ```
 */
export async function sendLater(
  connection: Connection,
  queue: string,
  body: Payload,
  options: MessageOptions = {},
): Promise<string> {
  const key = options.key ?? newKey();
  if (queue === "") {
    throw new InvalidError("the queue is empty");
  }
  checkKey(key);
  if (options.group === "") {
    throw new InvalidError("the group is empty");
  }
  const content = Content.of(body, options.contentType);
  const ms = (what: string, value: number | undefined): number | null =>
    value === undefined ? null : wholeMs(what, value);
  await connection.query(sql.SEND, [
    queue,
    key,
    options.group ?? "",
    Buffer.from(content.bytes),
    content.contentType ?? "",
    JSON.stringify(options.headers ?? {}),
    ms("delayMs", options.delayMs),
    ms("ttlMs", options.ttlMs),
    options.fingerprint ?? null,
    options.issuedAt?.getTime() ?? null,
  ]);
  return key;
}
