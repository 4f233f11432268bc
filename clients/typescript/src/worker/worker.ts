/** Workers: a handler for the messages of a queue, many at a time. */

import { hostname } from "node:os";
import type { Payload } from "../content.js";
import type { Delivery } from "../delivery.js";
import { type HapaxError, InvalidError } from "../errors.js";
import { checkMs } from "../message.js";
import type { Queue } from "../queue.js";
import { now } from "../retry.js";
import type { Done, Settle, Settled } from "../settle.js";
import type { Context } from "./context.js";
import { Driver } from "./driver.js";

const CONCURRENCY = 16;
const DRAIN_MS = 25_000;

/**
 * Handles one message. What it returns is the result: nothing, text, bytes, JSON, a `Content` or a
 * `Done`. An error that it throws fails the attempt: see `Failure`.
 */
export type Handler = (message: Delivery, context: Context) => Handled | Promise<Handled>;

/** What a handler returns. */
// biome-ignore lint/suspicious/noConfusingVoidType: a function that returns nothing is a handler
export type Handled = Payload | Done | undefined | void;

/** An event of a worker. */
export type WorkerEvent =
  /** The broker has answered the final settle of a message. Only the answer shows the outcome. */
  | { type: "settled"; delivery: Delivery; settle: Settle["do"]; answer: Settled | HapaxError }
  /** A lease was lost: another worker may have the message. */
  | { type: "lost"; delivery: Delivery }
  /** The broker cannot be reached. The worker goes on with what it has, and tries again. */
  | { type: "away"; error: HapaxError }
  | { type: "back" };

/** The settings of a worker. */
export interface WorkerOptions {
  /** Handlers that run at once; 16 by default. */
  concurrency?: number | undefined;
  /**
   * Messages that wait for a free handler; by default as many as handlers. They are leased to this
   * worker, and given back without counting an attempt if it stops.
   */
  prefetch?: number | undefined;
  /** A name that histories show, of at most 64 bytes: by default host and process. */
  name?: string | undefined;
  /**
   * How long a message stays leased if this process dies; by default the queue's `lease_ms`. While a
   * handler runs its lease is extended.
   */
  leaseMs?: number | undefined;
  /** How long handlers may continue after a stop; 25 s by default. */
  drainMs?: number | undefined;
  /** Called with what happens. It should return at once; what it throws is ignored. */
  observe?: ((event: WorkerEvent) => void) | undefined;
}

/** How a worker is. */
export interface Health {
  state: "idle" | "working" | "stopping" | "stopped";
  /** Whether the broker cannot be reached. */
  isAway: boolean;
  /** Handlers that run. */
  running: number;
  /** Messages that wait for a handler. */
  waiting: number;
  /** Leases that are held, also of messages whose settle is not answered. */
  held: number;
  /** Milliseconds since the broker last answered. */
  lastContactMs: number | undefined;
}

/**
 * Runs a handler for the messages of a queue.
 *
 * ```ts
 * const worker = new Worker(orders, async (message, context) => {
 *   const order = message.json<Order>();
 *   const receipt = await context.step("charge", (key) => charge(key, order.cents));
 *   return new Done(receipt).emit("emails", "receipt", "Thank you!");
 * });
 * process.once("SIGTERM", () => worker.stop());
 * await worker.run();
 * ```
 */
export class Worker {
  readonly queue: Queue;
  readonly #handler: Handler;
  readonly #options: WorkerOptions;
  #driver: Driver | undefined;
  #state: Health["state"] = "idle";

  constructor(queue: Queue, handler: Handler, options: WorkerOptions = {}) {
    const { concurrency, prefetch, leaseMs, drainMs } = options;
    checkCount("concurrency", concurrency ?? CONCURRENCY, 1);
    checkCount("prefetch", prefetch ?? 0, 0);
    checkMs("leaseMs", leaseMs ?? 0);
    checkMs("drainMs", drainMs ?? DRAIN_MS);
    this.queue = queue;
    this.#handler = handler;
    this.#options = options;
  }

  /**
   * Runs until it is stopped, or until a permanent error: a queue that does not exist, a token that
   * is not valid. It waits for a broker that cannot be reached. An abort of the signal is a stop.
   */
  async run(options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    if (this.#state === "working" || this.#state === "stopping") {
      throw new Error("the worker is running already");
    }
    const { concurrency = CONCURRENCY, drainMs = DRAIN_MS, leaseMs, observe } = this.#options;
    const limits = {
      concurrency,
      prefetch: this.#options.prefetch ?? concurrency,
      name: this.#options.name ?? ownName(),
      drainMs,
      leaseMs,
    };
    const driver = new Driver(this.queue, this.#handler, limits, (event) => {
      try {
        observe?.(event);
      } catch {
        // An observer must not end the worker.
      }
    });
    this.#driver = driver;
    this.#state = "working";
    const stop = (): void => this.stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    if (options.signal?.aborted) {
      stop();
    }
    try {
      await driver.run();
    } finally {
      this.#state = "stopped";
      options.signal?.removeEventListener("abort", stop);
    }
  }

  /**
   * Takes no more messages, gives back those that no handler has started, and lets `run` return when
   * the handlers have ended, at most after the drain time. The messages of handlers that have not
   * ended by then fail, except where an effect has begun: a queue that parks does so.
   */
  stop(options: { drainMs?: number | undefined } = {}): void {
    checkMs("drainMs", options.drainMs ?? DRAIN_MS);
    if (this.#state === "working") {
      this.#state = "stopping";
      this.#driver?.stop(options.drainMs);
    }
  }

  health(): Health {
    const driver = this.#driver;
    const contactAt = driver?.contactAt;
    return {
      state: this.#state,
      isAway: driver?.isAway ?? false,
      running: driver?.running ?? 0,
      waiting: driver?.waiting ?? 0,
      held: driver?.held ?? 0,
      lastContactMs: contactAt === undefined ? undefined : now() - contactAt,
    };
  }
}

function checkCount(what: string, count: number, least: number): void {
  if (!Number.isInteger(count) || count < least) {
    throw new InvalidError(`${what} is a whole number from ${least} on, not ${count}`);
  }
}

/** The default name: host and process. */
function ownName(): string {
  const host = hostname().replace(/[^\x21-\x7e]/g, "");
  return `${host.slice(0, 40) || "worker"}-${process.pid}`;
}
