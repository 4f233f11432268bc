/**
 * Retries: which errors are retried, how long to pause, and when to stop.
 *
 * Times are those of the monotonic clock; nothing here reads the wall clock.
 */

import { HapaxError } from "./errors.js";

const FIRST_MS = 20;
const LONGEST_MS = 5_000;
/** The longest delay that a timer takes; a longer one would end at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;
/** The longest pause of a loop without a limit, whatever it is asked for. */
const ASKED_MS_MAX = 600_000;

/** The monotonic clock, in milliseconds. */
export function now(): number {
  return performance.now();
}

/** A delay as a timer takes it. */
export function timerMs(ms: number): number {
  return Math.min(Math.max(0, ms), TIMER_MS_MAX);
}

/**
 * A retry loop with backoff. Pauses double up to a bound; each is drawn at random from the upper
 * half of its bound, so that many clients that lost one broker do not come back at the same moment,
 * and is never shorter than the broker asks for. A loop without a limit believes ten minutes.
 */
export class Retry {
  readonly #until: number;
  readonly #longest: number;
  #bound: number;

  /** Retries for at most this long from now; for ever without a limit. */
  constructor(
    withinMs = Number.POSITIVE_INFINITY,
    pauses: { firstMs?: number; longestMs?: number } = {},
  ) {
    this.#until = now() + withinMs;
    this.#bound = pauses.firstMs ?? FIRST_MS;
    this.#longest = pauses.longestMs ?? LONGEST_MS;
  }

  /** Milliseconds that are left. */
  get leftMs(): number {
    return Math.max(0, this.#until - now());
  }

  /** Calls until there is an answer, or an error that is not retried. */
  async run<T>(call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        await this.after(error, signal);
      }
    }
  }

  /** Waits before the next try. Throws the error at once if there will be none. */
  async after(error: unknown, signal?: AbortSignal): Promise<void> {
    const isRetried = error instanceof HapaxError && error.retryable;
    if (!isRetried || !(await this.pause(error.retryAfterMs, signal))) {
      throw error;
    }
  }

  /** Waits before the next try. Returns `false` at once if the time would be over before. */
  async pause(askedMs: number | undefined, signal?: AbortSignal): Promise<boolean> {
    const pause = this.nextPause(askedMs);
    if (now() + pause >= this.#until) {
      return false;
    }
    await sleep(pause, signal);
    return true;
  }

  /** The length of the next pause, for callers that wait for something else meanwhile. */
  nextPause(askedMs: number | undefined): number {
    const pause = this.#bound * (0.5 + Math.random() / 2);
    this.#bound = Math.min(this.#bound * 2, this.#longest);
    const isLimited = this.#until !== Number.POSITIVE_INFINITY;
    return Math.max(
      pause,
      Math.min(askedMs ?? 0, isLimited ? Number.POSITIVE_INFINITY : ASKED_MS_MAX),
    );
  }
}

/** Waits, or rejects with the reason of the signal. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const end = (): void => {
      signal?.removeEventListener("abort", abort);
      resolve();
    };
    const timer = setTimeout(end, timerMs(ms));
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** Waits for something for at most this long; returns `late` if it takes longer. */
export function within<T, L>(work: Promise<T>, ms: number, late: L): Promise<T | L> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => resolve(late), timerMs(ms));
    work.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
