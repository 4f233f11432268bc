/**
 * Settles of a worker, gathered: what comes while a request is under way goes with the next one.
 * Each settle gets its own answer; the error of a whole request is the answer to all of it.
 */

import type { WireContent } from "../content.js";
import { HapaxError, isPassing } from "../errors.js";
import type { Queue } from "../queue.js";
import type { Settle, Settled, WireSettle } from "../settle.js";

/** The most settles of one request. */
const ITEMS_MAX = 1_000;
/** The most bytes of one request, by an estimate that is well below the broker's bound. */
const BYTES_MAX = 4 * 1024 * 1024;
/** Requests at once: one is on its way while the next one gathers. */
const REQUESTS_MAX = 2;
/** A request that hangs is given up after this. */
const TIMEOUT_MS = 10_000;

/** What becomes of a settle. */
export type OnSettled = (answer: Settled | HapaxError) => void;

interface Item {
  wire: WireSettle;
  onSettled: OnSettled;
  /** Goes in a request of its own: one that it shared was refused as a whole. */
  isAlone: boolean;
}

export class Settler {
  readonly #queue: Queue;
  #items: Item[] = [];
  #requests = 0;
  #isScheduled = false;

  constructor(queue: Queue) {
    this.#queue = queue;
  }

  /** Whether nothing waits for an answer. */
  get isIdle(): boolean {
    return this.#items.length === 0 && this.#requests === 0;
  }

  settle(lease: string, settle: Settle, onSettled: OnSettled): void {
    this.#items.push({ wire: { lease, ...settle }, onSettled, isAlone: false });
    this.#schedule();
  }

  /** Sends after what else happens now: handlers that end together are settled together. */
  #schedule(): void {
    if (!this.#isScheduled && this.#requests < REQUESTS_MAX) {
      this.#isScheduled = true;
      setImmediate(() => {
        this.#isScheduled = false;
        if (this.#items.length > 0 && this.#requests < REQUESTS_MAX) {
          void this.#send(this.#gather());
        }
      });
    }
  }

  #gather(): Item[] {
    let bytes = 0;
    let count = 0;
    for (const { wire, isAlone } of this.#items) {
      bytes += sizeOf(wire);
      if (count === ITEMS_MAX || (count > 0 && (isAlone || bytes > BYTES_MAX))) {
        break;
      }
      count += 1;
      if (isAlone) {
        break;
      }
    }
    const items = this.#items.slice(0, count);
    this.#items = this.#items.slice(count);
    return items;
  }

  async #send(items: Item[]): Promise<void> {
    this.#requests += 1;
    let answers: (Settled | HapaxError)[];
    try {
      const wires = items.map(({ wire }) => wire);
      answers = await this.#queue.settle(wires, { timeoutMs: TIMEOUT_MS });
    } catch (error) {
      const isRefused = error instanceof HapaxError && !isPassing(error);
      if (isRefused && items.length > 1) {
        // One of them is to blame, and the others must not suffer for it.
        this.#items.unshift(...items.map((item) => ({ ...item, isAlone: true })));
        items = [];
      }
      answers = items.map(() => error as HapaxError);
    }
    this.#requests -= 1;
    items.forEach((item, index) => {
      item.onSettled(answers[index] as Settled | HapaxError);
    });
    if (this.#items.length > 0) {
      this.#schedule();
    }
  }
}

/** An estimate of a settle in JSON, by the parts without a small bound. */
function sizeOf(settle: Settle): number {
  const own = 128 + lengthOf(settle) + lengthOf(settle.result) + (settle.error?.length ?? 0);
  return (settle.emit ?? NO_EMITS).reduce((sum, emit) => sum + 128 + lengthOf(emit), own);
}

const NO_EMITS: WireContent[] = [];

function lengthOf(content: WireContent | undefined): number {
  return (content?.body?.length ?? 0) + (content?.body_base64?.length ?? 0);
}
