/**
 * Messages as requests: batches of JSON, which say everything exactly, and the raw form for a body
 * that is too large for a batch. A message is written once, before its first try: every retry sends
 * the same bytes, whatever the caller does with its objects meanwhile.
 */

import { byteLength, Content } from "./content.js";
import { InvalidError } from "./errors.js";
import { checkKey, quoteKey } from "./keys.js";
import { checkText, type Message, timeText, wholeMs, writeMessage } from "./message.js";
import type { Call } from "./transport.js";

/** The most messages in a batch. */
const BATCH_MAX = 1_000;
/** The most bytes of the messages of a batch, a little below the broker's 8 MiB. */
const BATCH_BYTES_MAX = 8 * 1024 * 1024 - 64 * 1024;
/** A message with a larger body goes alone, as it is. */
const RAW_BYTES_MIN = 1024 * 1024;

/** A message as it is sent: a part of a batch, or a request of its own. */
export type Written = { text: string; bytes: number } | { raw: Omit<Call, "timeoutMs"> };

/** Writes a message. Throws a `HapaxError` if it cannot be sent. */
export function written(path: string, key: string, message: Message): Written {
  checkKey(key);
  const content = Content.of(message.body, message.contentType);
  const whole = { ...message, body: content, key };
  if (content.length >= RAW_BYTES_MIN) {
    return { raw: sendRaw(path, whole) };
  }
  const text = JSON.stringify(writeMessage(whole));
  return { text, bytes: byteLength(text) + 1 };
}

/** Shares messages out to requests, in order. */
export function packed<T extends { written: Written }>(places: T[]): T[][] {
  const batches: T[][] = [];
  let open: T[] = [];
  let bytes = 0;
  const close = (): void => {
    if (open.length > 0) {
      batches.push(open);
    }
    open = [];
    bytes = 0;
  };
  for (const place of places) {
    if ("raw" in place.written) {
      close();
      batches.push([place]);
      continue;
    }
    const size = place.written.bytes;
    if (open.length === BATCH_MAX || bytes + size > BATCH_BYTES_MAX) {
      close();
    }
    open.push(place);
    bytes += size;
  }
  close();
  return batches;
}

/** The request of one message whose body is sent as it is. */
function sendRaw(
  path: string,
  message: Message & { key: string; body: Content },
): Omit<Call, "timeoutMs"> {
  const content = message.body;
  const headers: Record<string, string> = { "idempotency-key": quoteKey(message.key) };
  const put = (name: string, value: string | undefined): void => {
    if (value !== undefined) {
      headers[name] = headerText(name, value);
    }
  };
  put("content-type", content.contentType ?? undefined);
  put("hapax-group", message.group);
  put("hapax-fingerprint", message.fingerprint);
  put("hapax-issued-at", message.issuedAt && timeText("issuedAt", message.issuedAt));
  put("hapax-delay-ms", msText("delayMs", message.delayMs));
  put("hapax-ttl-ms", msText("ttlMs", message.ttlMs));
  for (const [name, value] of Object.entries(message.headers ?? {})) {
    put(`hapax-header-${name}`, value);
  }
  // A copy: the caller may use its buffer again.
  const bytes = new Uint8Array(content.bytes);
  return { method: "POST", path: `${path}/messages`, headers, bytes };
}

/** A text as a header holds it: the bytes of UTF-8. What a header would change is refused. */
export function headerText(name: string, value: string): string {
  checkText(name, value);
  if (value !== value.trim() || [...value].some((letter) => letter < " " || letter === "\x7f")) {
    const detail = `${name} cannot be sent in a header: white space at its ends, or a control`;
    throw new InvalidError(detail);
  }
  return Buffer.from(value).toString("latin1");
}

function msText(what: string, ms: number | undefined): string | undefined {
  return ms === undefined ? undefined : String(wholeMs(what, ms));
}
