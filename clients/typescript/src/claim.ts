/** Claims: keys held by callers that do the work themselves. */

import { Answer, answerOf, type WireAnswer } from "./answer.js";
import type { CallOptions } from "./client.js";
import { Content, type Payload, type WireContent } from "./content.js";
import { HapaxError, InFlightError, LeaseLostError, msOf } from "./errors.js";
import { derive, newKey, quoteKey } from "./keys.js";
import { timeText, wholeMs } from "./message.js";
import { headerText } from "./pack.js";
import type { Queue } from "./queue.js";
import { now, Retry, timerMs } from "./retry.js";
import { Done, type Settle, type Settled, saveOf } from "./settle.js";
import { hasTexts } from "./transport.js";

/** The default lease of a claim. */
const LEASE_MS = 30_000;
/** A claim is extended after this part of its lease. */
const EXTEND_AT = 0.4;
/** The shortest time between two extensions, however short the lease. */
const EXTEND_MS_MIN = 20;
/** The longest wait of one call. */
const WAIT_S_MAX = 60;

/** What a claim may have besides its key. */
export interface ClaimOptions extends CallOptions {
  /** The body of the operation, for the fingerprint. It is not stored. */
  body?: Payload | undefined;
  contentType?: string | undefined;
  group?: string | undefined;
  /** Kept with the claim and shown with its key. */
  headers?: Record<string, string> | undefined;
  /** Distinguishes a retry from another operation, instead of the body. */
  fingerprint?: string | undefined;
  /** How long the key stays claimed if this process dies; 30 s by default. */
  leaseMs?: number | undefined;
  /** The longest wait for the present holder of the key to end; whole seconds, rounded up. */
  waitMs?: number | undefined;
  /** A name that histories show, of at most 64 bytes. */
  worker?: string | undefined;
  issuedAt?: Date | undefined;
}

/**
 * The outcome of a claim: `fresh`, and the caller holds the key now; or the answer of a key that was
 * `done` before, is `in_flight` with another caller, `dead` or `parked`.
 */
export type Claim = Held | Answer;

interface WireClaim extends Omit<WireAnswer, "deadline"> {
  lease: string;
  fence: string;
  tenant?: string;
  lease_ms?: number;
  deadline?: string;
  recovery_points?: Record<string, WireContent>;
}

/**
 * Claims a key. All tries of one call have the same claim id: if the first one claimed the key and
 * its answer was lost, the next gets the same lease.
 */
export async function claim(queue: Queue, key: string, options: ClaimOptions): Promise<Claim> {
  const waitMs = wholeMs("waitMs", options.waitMs ?? 0);
  const leaseMs = wholeMs("leaseMs", options.leaseMs ?? LEASE_MS);
  const headers = claimHeaders(key, leaseMs, options);
  // A copy: the caller may use its buffer again while the claim is retried.
  const bytes =
    options.body === undefined ? undefined : new Uint8Array(Content.of(options.body).bytes);
  const waitUntil = now() + waitMs;
  const retry = new Retry(queue.client.timeoutOf(options) + waitMs);
  let tries = 0;
  let asked = 0;
  let left = 0;
  const take = async (): Promise<Claim> => {
    tries += 1;
    asked = now();
    left = Math.min(Math.ceil(Math.max(0, waitUntil - asked) / 1_000), WAIT_S_MAX);
    const prefer: Record<string, string> = left > 0 ? { prefer: `wait=${left}` } : {};
    const call = {
      method: "POST" as const,
      path: `${queue.path}/claims`,
      headers: { ...headers, ...prefer },
      isAnswer: isClaim,
      ...(bytes === undefined ? {} : { bytes }),
    };
    try {
      const { tried } = queue.client;
      const reply = await tried.call(queue.client, call, retry, options.signal, left * 1_000);
      const wire = reply.body as WireClaim;
      if (wire.answer === "fresh") {
        return new Held(queue, key, options.group, wire, leaseMs, tries > 1);
      }
      const answer = answerOf(wire as WireAnswer, queue.name, key);
      if (answer instanceof HapaxError) {
        throw answer;
      }
      return answer;
    } catch (error) {
      if (error instanceof InFlightError) {
        return inFlight(error, queue, key);
      }
      throw error;
    }
  };
  for (;;) {
    const taken = await retry.run(take, options.signal);
    // One call waits for a minute at most. A broker that does not wait, because it is stopping, is
    // not asked again at once.
    const isEarly = now() < asked + left * 500;
    if (
      taken.answer !== "in_flight" ||
      now() >= waitUntil ||
      (isEarly && !(await retry.pause(undefined, options.signal)))
    ) {
      return taken;
    }
  }
}

function isClaim(body: unknown): boolean {
  const isOne = hasTexts("answer");
  const isFresh = hasTexts("answer", "lease", "fence");
  return isOne(body) && ((body as WireClaim).answer !== "fresh" || isFresh(body));
}

function claimHeaders(key: string, leaseMs: number, options: ClaimOptions): Record<string, string> {
  const headers: Record<string, string> = {
    "idempotency-key": quoteKey(key),
    "hapax-claim-id": newKey(),
    "hapax-lease-ms": String(leaseMs),
  };
  const put = (name: string, value: string | undefined): void => {
    if (value !== undefined) {
      headers[name] = headerText(name, value);
    }
  };
  const { contentType } = options;
  put("content-type", contentType);
  put("hapax-group", options.group);
  put("hapax-fingerprint", options.fingerprint);
  put("hapax-worker", options.worker);
  put("hapax-issued-at", options.issuedAt && timeText("issuedAt", options.issuedAt));
  for (const [name, value] of Object.entries(options.headers ?? {})) {
    put(`hapax-header-${name}`, value);
  }
  return headers;
}

function inFlight(error: InFlightError, queue: Queue, key: string): Answer {
  const wire = { ...error.problem, answer: "in_flight" } as WireAnswer;
  return new Answer(wire, queue.name, key);
}

/**
 * A claimed key. Its lease is extended until it is settled, lost, or {@link Held.abandon}ed.
 *
 * If the process ends before, the key is freed when its lease ends, or parked if the effect had
 * begun and the queue parks. {@link Held.release} frees it at once.
 */
export class Held {
  readonly answer = "fresh";
  readonly queue: Queue;
  readonly key: string;
  readonly id: string;
  readonly tenant: string;
  /** Grows with every claim. Decimal digits, since it outgrows a number. */
  readonly fence: string;
  /** How long the key stays claimed after the last extension if this process dies. */
  readonly leaseMs: number;
  readonly #group: string | undefined;
  readonly #lease: string;
  readonly #points: Record<string, WireContent>;
  readonly #lost = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  /** The lease is held until then, if the last extension was lost. */
  #until: number;
  /** The caller wants the key until then; an automatic extension never shortens it. */
  #wanted = 0;

  /** @internal */
  constructor(
    queue: Queue,
    key: string,
    group: string | undefined,
    wire: WireClaim,
    leaseMs: number,
    isRepeated: boolean,
  ) {
    this.queue = queue;
    this.key = key;
    this.id = wire.id ?? "";
    this.tenant = wire.tenant ?? "";
    this.fence = wire.fence;
    this.leaseMs = msOf(wire.lease_ms) ?? leaseMs;
    this.#group = group;
    this.#lease = wire.lease;
    this.#points = wire.recovery_points ?? {};
    this.#until = now() + this.leaseMs;
    // An earlier try may have got the lease, and part of it is over.
    this.#schedule(isRepeated ? 0 : undefined);
  }

  /** Aborted when the lease is lost: work under it should stop then. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** What an earlier claim of the key saved before it was released or lost. */
  recoveryPoint(name: string): Content | undefined {
    const point = Object.hasOwn(this.#points, name) ? this.#points[name] : undefined;
    return point === undefined ? undefined : Content.read(point);
  }

  /** A key for calls to other services: the same for every claim of this key. */
  derive(name: string): string {
    return derive({ queue: this.queue.name, key: this.key, group: this.#group }, name);
  }

  /**
   * Finishes the claim with a result that every later claim of the key gets; a {@link Done} also
   * sends follow-up messages.
   */
  async complete(result?: Payload | Done, options: CallOptions = {}): Promise<Settled> {
    const done = result instanceof Done ? result : new Done(result);
    return this.settle(done.write(), options);
  }

  /** Frees the key: the next claim is fresh. */
  async release(options: CallOptions = {}): Promise<Settled> {
    return this.settle({ do: "release" }, options);
  }

  /**
   * Marks that a non-repeatable effect starts now. If the lease is lost after this, a queue with
   * `on_lost = park` parks the key until an operator resolves it.
   */
  async begin(options: CallOptions = {}): Promise<void> {
    await this.#keep({ do: "begin" }, options);
  }

  /** Stores a recovery point, for the next claim of the key. */
  async save(name: string, data: Payload, options: CallOptions = {}): Promise<void> {
    await this.#keep(saveOf(name, Content.of(data)), options);
  }

  /** Extends the lease to at least this long from now, by default to its own length. */
  async extend(leaseMs?: number, options: CallOptions = {}): Promise<void> {
    const before = this.#wanted;
    const asked = now();
    const wanted = wholeMs("leaseMs", leaseMs ?? 0);
    const until = Math.max(before, asked + Math.max(wanted, this.leaseMs));
    // Set before the call: an automatic extension may be sent meanwhile.
    this.#wanted = until;
    try {
      await this.#keep({ do: "extend", lease_ms: Math.ceil(until - asked) }, options);
      this.#until = Math.max(this.#until, until);
    } catch (error) {
      this.#wanted = before;
      throw error;
    }
  }

  /** Stops extending without a settle: the key is freed when its lease ends. */
  abandon(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Settles the claim, and retries while the broker cannot be reached. */
  async settle(settle: Settle, options: CallOptions = {}): Promise<Settled> {
    const settled = await this.#send(settle, options);
    const isEnd = !["begin", "save", "extend"].includes(settle.do);
    if (isEnd || settled.answer === "lease_lost") {
      this.abandon();
    }
    if (settled.answer === "lease_lost" && !isEnd) {
      this.#lost.abort(new LeaseLostError());
    }
    return settled;
  }

  async #keep(settle: Settle, options: CallOptions): Promise<void> {
    if ((await this.settle(settle, options)).answer === "lease_lost") {
      throw new LeaseLostError();
    }
  }

  async #send(settle: Settle, options: CallOptions): Promise<Settled> {
    const retry = new Retry(this.queue.client.timeoutOf(options));
    return retry.run(async () => {
      const timeoutMs = Math.min(10_000, Math.max(retry.leftMs, 1));
      const item = { lease: this.#lease, ...settle };
      const [answer] = await this.queue.settle([item], { timeoutMs, signal: options.signal });
      if (answer === undefined || answer instanceof HapaxError) {
        throw answer;
      }
      return answer;
    }, options.signal);
  }

  #schedule(inMs?: number): void {
    const pause = inMs ?? Math.max(this.leaseMs * EXTEND_AT, EXTEND_MS_MIN);
    this.#timer = setTimeout(() => void this.#extend(), timerMs(pause));
    // A forgotten claim does not keep the process alive.
    this.#timer.unref();
  }

  async #extend(): Promise<void> {
    const timer = this.#timer;
    // Counted from before the call, so that the deadline here is not later than the broker's.
    const asked = now();
    const end = Math.max(this.#until, this.#wanted);
    const length = Math.max(this.leaseMs, this.#wanted - asked);
    try {
      const extend: Settle = { do: "extend", lease_ms: Math.ceil(length) };
      const settled = await this.#send(extend, { timeoutMs: Math.max(1, end - asked) });
      if (settled.answer === "ok") {
        this.#until = Math.max(this.#until, asked + length);
      } else {
        this.#until = 0;
      }
    } catch (error) {
      if (!(error instanceof HapaxError && error.retryable)) {
        this.#until = 0;
      }
    }
    if (this.#timer !== timer) {
      return; // Settled meanwhile.
    }
    if (Math.max(this.#until, this.#until === 0 ? 0 : this.#wanted) <= now()) {
      this.abandon();
      this.#lost.abort(new LeaseLostError());
    } else {
      this.#schedule();
    }
  }
}
