/** A handler's access to its lease: save, extend, begin, steps. */

import { Content, type Payload } from "../content.js";
import type { Delivery } from "../delivery.js";
import { HapaxError, InvalidError, LeaseLostError, TooLargeError } from "../errors.js";
import { wholeMs } from "../message.js";
import { type Settle, saveOf } from "../settle.js";
import { intentOf, Ledger, outcomeOf, pointName, tooLargeFailure, tooLargeOf } from "./steps.js";

/** What the worker does for a context. */
export interface Keeper<W> {
  /** Settles, and repeats while the broker cannot be reached and the lease is held. */
  keep(work: W, settle: Settle): Promise<void>;
  /** Extends the lease to at least this long from now. */
  extendFor(work: W, leaseMs: number | undefined): Promise<void>;
}

/** What can be aborted, and has a signal for those who ask. */
export interface Abortable {
  readonly signal: AbortSignal;
  readonly aborted: Error | undefined;
}

/** A handler's access to its lease. */
export class Context {
  readonly delivery: Delivery;
  /**
   * Aborted when the lease is lost, and when a stopped worker gives up waiting for the handler: stop
   * then. After a lost lease an error is not reported to the broker; a result is, and counts if no
   * other worker has taken the message meanwhile.
   */
  get signal(): AbortSignal {
    return this.#work.signal;
  }

  /** Aborted when the worker is told to stop: for handlers that can finish early. */
  readonly stopping: AbortSignal;
  readonly #work: Abortable;
  readonly #keeper: Keeper<Abortable>;
  #ledger: Ledger | undefined;

  /** @internal */
  constructor(
    delivery: Delivery,
    work: Abortable,
    stopping: AbortSignal,
    keeper: Keeper<Abortable>,
  ) {
    this.delivery = delivery;
    this.#work = work;
    this.stopping = stopping;
    this.#keeper = keeper;
  }

  /**
   * Calls another service once per message, under a key of its own: charges a card, sends a mail.
   *
   * `call` gets a key that is derived from the message's key and `name`: the same in every attempt.
   * The intent is saved before the call and the outcome after it, as the recovery point `step:NAME`.
   * A later attempt gets the saved outcome without a call. Outcomes are JSON: what is returned is
   * what a later attempt would read, so `undefined` becomes `null` and a date a text.
   *
   * An error of the call fails the step and saves nothing; the next attempt calls again with the
   * same key, and the service must return its first answer. If the lease is lost, the step rejects
   * with a `LeaseLostError` and nothing is saved.
   */
  async step<T>(
    name: string,
    call: (key: string, signal: AbortSignal) => T | Promise<T>,
  ): Promise<T> {
    const ledger = this.#points();
    const found = ledger.take(name);
    if ("outcome" in found) {
      return found.outcome as T;
    }
    return this.#orLost(this.#call(ledger, name, found.key, call));
  }

  /**
   * Marks durably that a non-repeatable effect starts now. A queue with `on_lost = park` parks the
   * message, until an operator resolves it, if after this the lease is lost, the handler throws
   * anything but a plain `Failure`, or its result is refused.
   */
  async begin(): Promise<void> {
    await this.#keeper.keep(this.#work, { do: "begin" });
  }

  /** Stores a recovery point: the next attempt finds it in the delivery. */
  async save(name: string, data: Payload): Promise<void> {
    const content = Content.of(data);
    await this.#keeper.keep(this.#work, saveOf(name, content));
    this.#points().saved(name, content.length);
  }

  /**
   * Extends the lease to at least this long from now, by default to its own length. Leases are
   * extended automatically; this is for a handler that is about to block the event loop.
   */
  async extend(leaseMs?: number): Promise<void> {
    await this.#keeper.extendFor(
      this.#work,
      leaseMs === undefined ? undefined : wholeMs("leaseMs", leaseMs),
    );
  }

  /** Whether another worker may have the message now. */
  get isLost(): boolean {
    return this.#work.aborted !== undefined;
  }

  /** All recovery points count, also those that were saved before the first step. */
  #points(): Ledger {
    this.#ledger ??= new Ledger(this.delivery);
    return this.#ledger;
  }

  async #call<T>(
    ledger: Ledger,
    name: string,
    key: string,
    call: (key: string, signal: AbortSignal) => T | Promise<T>,
  ): Promise<T> {
    const point = pointName(name);
    ledger.reserve(name);
    // Also proves, a moment before the call, that this worker still holds the lease.
    await this.#keeper.keep(this.#work, saveOf(point, intentOf(key)));
    const data = outcomeOf(name, key, await call(key, this.signal));
    let fits = ledger.fits(point, data);
    if (fits) {
      try {
        await this.#keeper.keep(this.#work, saveOf(point, data));
        ledger.saved(point, data.length);
      } catch (error) {
        // Recovery points saved elsewhere, or a broker with other bounds.
        if (!(error instanceof InvalidError || error instanceof TooLargeError)) {
          throw error;
        }
        fits = false;
      }
    }
    if (!fits) {
      await this.#keeper.keep(this.#work, saveOf(point, tooLargeOf(key, data.length)));
      throw tooLargeFailure(name, key, data.length);
    }
    return data.json<{ outcome: T }>().outcome;
  }

  /** Ends with a lost lease at once, whatever the call does then. */
  #orLost<T>(promise: Promise<T>): Promise<T> {
    const { signal } = this;
    return new Promise<T>((resolve, reject) => {
      const lose = (): void => reject(lossOf(signal));
      if (signal.aborted) {
        lose();
      }
      signal.addEventListener("abort", lose, { once: true });
      promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", lose));
    });
  }
}

/** The error of what ends because its signal was aborted. */
export function lossOf(signal: AbortSignal): Error {
  return signal.reason instanceof HapaxError ? signal.reason : new LeaseLostError();
}
