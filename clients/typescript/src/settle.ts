/** Settles: the result of a message, its failure, and their answers. */

import type { State } from "./answer.js";
import { Content, type Payload, type WireContent } from "./content.js";
import { errorOf, type HapaxError, type Problem, strangeAnswer } from "./errors.js";
import { type MessageOptions, type WireMessage, wholeMs, writeMessage } from "./message.js";

/** The longest error that the broker stores, in bytes. */
const ERROR_BYTES_MAX = 4_096;
/** The longest delay that the broker takes. */
const DELAY_MS_MAX = 366 * 24 * 60 * 60 * 1_000;

/** One settle in JSON. */
export interface WireSettle {
  lease: string;
  do: "done" | "fail" | "release" | "extend" | "begin" | "save" | "park";
  result?: WireContent;
  emit?: WireEmit[];
  error?: string;
  delay_ms?: number;
  dead?: boolean;
  lease_ms?: number;
  name?: string;
  body?: string | null;
  body_base64?: string | null;
}

/** What is done with a lease, before its lease is written beside it. */
export type Settle = Omit<WireSettle, "lease">;

/** A follow-up message in JSON. */
export interface WireEmit extends WireMessage {
  queue: string;
  name: string;
}

/** The answer to one settle in JSON. */
export interface WireSettled extends Omit<Problem, "state"> {
  answer: "ok" | "lease_lost" | "error";
  state?: State;
  result?: WireContent | null;
}

/** The answer to a settle. */
export interface Settled {
  answer: "ok" | "lease_lost";
  state: State | undefined;
  /** The winner's result, where the lease was lost to one who finished. */
  result: Content | undefined;
}

/** Reads the answer to a settle. A refusal is returned as an error. */
export function settledOf(wire: WireSettled | undefined): Settled | HapaxError {
  if (wire?.answer === "error") {
    return errorOf(wire as Problem);
  }
  if (wire?.answer !== "ok" && wire?.answer !== "lease_lost") {
    return strangeAnswer("a settle has no answer, or one that is unknown");
  }
  const result = wire.result == null ? undefined : Content.read(wire.result);
  return { answer: wire.answer, state: wire.state, result };
}

/** What a follow-up message may have; its date is the time at which its parent is done. */
export type EmitOptions = Omit<MessageOptions, "issuedAt">;

/**
 * The successful outcome of a message, with follow-up messages. A handler may also return its
 * result alone.
 *
 * ```ts
 * return new Done("charged").emit("emails", "receipt", "Thank you!");
 * ```
 */
export class Done {
  readonly #settle: Settle;
  readonly #emits: WireEmit[] = [];

  /** `undefined` and `null` are no result. */
  constructor(result?: Payload | undefined) {
    this.#settle = doneOf(result);
  }

  /**
   * Adds a follow-up message, which is sent if and only if this `done` succeeds. If it has no key,
   * its key is derived from the parent's and `name`, so that it is sent once, however many attempts
   * the parent takes.
   */
  emit(queue: string, name: string, body: Payload, options: EmitOptions = {}): this {
    this.#emits.push({ ...writeMessage({ ...options, body }), queue, name });
    return this;
  }

  /** @internal */
  write(): Settle {
    return this.#emits.length === 0 ? this.#settle : { ...this.#settle, emit: this.#emits };
  }
}

/** The settle of a result without follow-up messages. `undefined` and `null` are no result. */
export function doneOf(result: Payload | undefined): Settle {
  return result === undefined || result === null
    ? { do: "done" }
    : { do: "done", result: Content.of(result).write() };
}

/** How a failure differs from one that is tried again after the queue's backoff. */
export interface FailureOptions {
  /** Try again after this time, instead of the queue's backoff. */
  retryInMs?: number | undefined;
  /** Do not try again: the message is dead. */
  dead?: boolean | undefined;
  /**
   * Nobody knows whether the effect happened: a message that was begun, in a queue with `on_lost =
   * park`, is parked.
   */
  inDoubt?: boolean | undefined;
  cause?: unknown;
}

/**
 * A failed attempt: throw it in a handler to say what happens next. Thrown after `begin`, it says
 * that the effect did not happen, unless it is in doubt. Any other error fails the attempt too; one
 * that is thrown after `begin` leaves it in doubt.
 */
export class Failure extends Error {
  readonly retryInMs: number | undefined;
  readonly dead: boolean;
  readonly inDoubt: boolean;

  constructor(message: string, options: FailureOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "Failure";
    this.retryInMs = options.retryInMs;
    this.dead = options.dead ?? false;
    this.inDoubt = options.inDoubt ?? false;
  }

  /** A failure that is not retried: the message is dead. */
  static dead(message: string, cause?: unknown): Failure {
    return new Failure(message, { dead: true, cause });
  }

  /** A failure that is retried after this time. */
  static retryIn(ms: number, message: string, cause?: unknown): Failure {
    return new Failure(message, { retryInMs: ms, cause });
  }

  /** Nobody knows whether the effect happened. */
  static inDoubt(message: string, cause?: unknown): Failure {
    return new Failure(message, { inDoubt: true, cause });
  }
}

/** The settle of what a handler threw, whatever that is. */
export function failureOf(error: unknown): Settle {
  if (!isA(error, Failure)) {
    // Nobody knows whether a begun effect happened. Where nothing was begun, it is a plain failure.
    return parkOf(errorText(error));
  }
  const settle: Settle = { do: error.inDoubt ? "park" : "fail", error: errorText(error) };
  const { retryInMs } = error;
  if (typeof retryInMs === "number" && retryInMs >= 0) {
    settle.delay_ms = Math.min(wholeMs("retryInMs", retryInMs), DELAY_MS_MAX);
  }
  if (error.dead) {
    settle.dead = true;
  }
  return settle;
}

/** The settle of an attempt whose outcome is unknown. */
export function parkOf(error: string, dead = false): Settle {
  return { do: "park", error: cut(error), ...(dead ? { dead } : {}) };
}

/** The settle of a recovery point. */
export function saveOf(name: string, data: Content): Settle {
  return { do: "save", name, ...data.writeBody() };
}

/**
 * The text of an error with its causes, cut to what the broker stores. Never a stack. It never
 * throws, whatever was thrown.
 */
export function errorText(error: unknown): string {
  const texts: string[] = [];
  try {
    let cause: unknown = error;
    for (let depth = 0; isA(cause, Error) && depth < 8; depth += 1) {
      texts.push(String(cause.message || cause.name));
      cause = cause.cause === error ? undefined : cause.cause;
    }
  } catch {
    texts.push("an error whose text cannot be read");
  }
  if (texts.length === 0) {
    texts.push(typeof error === "string" ? error : `the handler threw ${describe(error)}`);
  }
  return cut(texts.join(": "));
}

function describe(value: unknown): string {
  return value === null || typeof value !== "object" ? String(value) : "an object";
}

/** `instanceof`, also for a proxy that refuses to say what it is. */
function isA<T>(value: unknown, type: abstract new (...args: never[]) => T): value is T {
  try {
    return value instanceof type;
  } catch {
    return false;
  }
}

function cut(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= ERROR_BYTES_MAX) {
    return text.toWellFormed();
  }
  // Not in the middle of a character.
  let end = ERROR_BYTES_MAX;
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) {
    end -= 1;
  }
  return bytes.subarray(0, end).toString();
}
