/** The message to send, and how it is written. */

import { Content, type Payload, type WireContent } from "./content.js";
import { InvalidError } from "./errors.js";

/** What a message may have besides its body. */
export interface MessageOptions {
  /**
   * The caller's name for the operation, 1 to 255 bytes. A retry must repeat it: make it once per
   * operation and store it with the operation. A message without one gets a UUIDv7, which protects
   * against lost answers, but not against the caller sending it again.
   */
  key?: string | undefined;
  contentType?: string | undefined;
  /** Messages of one group are delivered in order, in queues with `order = group`. */
  group?: string | undefined;
  /** Kept with the message and delivered to its worker. */
  headers?: Record<string, string> | undefined;
  /** The delay before the first delivery. */
  delayMs?: number | undefined;
  /** The time to live: the message is dead if it is not done by then. */
  ttlMs?: number | undefined;
  /**
   * Distinguishes a retry from another operation, instead of body and group: for bodies that change
   * between retries.
   */
  fingerprint?: string | undefined;
  /** When the operation was issued, for keys without a date: a retry that comes too late is refused. */
  issuedAt?: Date | undefined;
}

/** A message to send. */
export interface Message extends MessageOptions {
  body: Payload;
}

/** A message in JSON. */
export interface WireMessage extends WireContent {
  key?: string;
  group?: string;
  headers?: Record<string, string>;
  delay_ms?: number;
  ttl_ms?: number;
  fingerprint?: string;
  issued_at?: string;
}

/** Writes a message as the broker reads it. */
export function writeMessage(message: Message): WireMessage {
  const wire: WireMessage = Content.of(message.body, message.contentType).write();
  if (message.key !== undefined) {
    wire.key = message.key;
  }
  if (message.group !== undefined) {
    wire.group = checkText("group", message.group);
  }
  if (message.headers !== undefined) {
    for (const [name, value] of Object.entries(message.headers)) {
      checkText("the name of a header", name);
      checkText(name, value);
    }
    wire.headers = message.headers;
  }
  if (message.delayMs !== undefined) {
    wire.delay_ms = wholeMs("delayMs", message.delayMs);
  }
  if (message.ttlMs !== undefined) {
    wire.ttl_ms = wholeMs("ttlMs", message.ttlMs);
  }
  if (message.fingerprint !== undefined) {
    wire.fingerprint = checkText("fingerprint", message.fingerprint);
  }
  if (message.issuedAt !== undefined) {
    wire.issued_at = timeText("issuedAt", message.issuedAt);
  }
  return wire;
}

/** Whole milliseconds, rounded up, so that a duration above zero stays above zero. */
export function wholeMs(what: string, ms: number): number {
  return Math.min(Math.ceil(checkMs(what, ms)), Number.MAX_SAFE_INTEGER);
}

/** A length of time, which may be infinite. Throws {@link InvalidError} if it is none. */
export function checkMs(what: string, ms: number): number {
  if (typeof ms !== "number" || !(ms >= 0)) {
    throw new InvalidError(`${what} is a number of milliseconds, not ${ms}`);
  }
  return ms;
}

/** A text that UTF-8 can hold: replacing half of a character would make another name of it. */
export function checkText(what: string, text: string): string {
  if (typeof text !== "string" || !text.isWellFormed()) {
    throw new InvalidError(`${what} is not a text of whole characters`);
  }
  return text;
}

/** A time as the broker reads it. */
export function timeText(what: string, time: Date): string {
  if (!(time instanceof Date) || Number.isNaN(time.getTime())) {
    throw new InvalidError(`${what} is not a valid date`);
  }
  return time.toISOString();
}
