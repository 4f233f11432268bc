/**
 * Settles a claim after its handler has ended, and determines the client's response.
 *
 * The effect has happened by then, so storing the response is tried for minutes, in the background if
 * it takes long. Even if the lease was lost, the response is stored as long as nobody else has the
 * key.
 */

import { type Claim, Held } from "../claim.js";
import { Content } from "../content.js";
import { ConflictError, HapaxError } from "../errors.js";
import { Retry, within } from "../retry.js";
import { Done, parkOf, type Settle, type Settled } from "../settle.js";
import type { Rules, Settlement } from "./options.js";
import { encode, isKept, STORED_TYPE, type Stored } from "./stored.js";

/** How long storing a response is tried after its client got an error. */
const PATIENCE_MS = 600_000;
const PAUSE = { firstMs: 200, longestMs: 200 };

/** What became of a response that was to be stored. */
export type Ended =
  | { how: "stored" | "superseded" | "unknown" | "refused" }
  | { how: "replaced"; result: Content };

/** A claim whose handler has ended. */
export class Settling {
  readonly #rules: Rules;
  readonly #held: Held;
  /** Claims the key again, where the lease was lost and nobody else has it. */
  readonly #claim: () => Promise<Claim>;
  /** Counts what goes on in the background. */
  readonly #track: <T>(work: Promise<T>) => Promise<T>;

  constructor(
    rules: Rules,
    held: Held,
    claim: () => Promise<Claim>,
    track: <T>(work: Promise<T>) => Promise<T>,
  ) {
    this.#rules = rules;
    this.#held = held;
    this.#claim = claim;
    this.#track = track;
  }

  /** Frees the key: the next request with it is a first one. */
  async release(): Promise<void> {
    await this.#end({ do: "release" }, ({ answer }) => (answer === "ok" ? "released" : "lost"));
  }

  /** The outcome is unknown: a queue that parks keeps the key, any other frees it. */
  async park(why: string): Promise<void> {
    await this.#end(parkOf(why), ({ answer, state }) =>
      answer === "ok" || state === "parked" ? "in_doubt" : "lost",
    );
  }

  /** Stores the response. Waits for the broker at most for its timeout; tries go on behind. */
  async complete(stored: Stored): Promise<Ended> {
    const ended = this.#track(this.#store(stored));
    const late: Ended = { how: "unknown" };
    return within(ended, this.#rules.brokerTimeoutMs, late);
  }

  async #end(settle: Settle, named: (settled: Settled) => Settlement): Promise<void> {
    const { brokerTimeoutMs } = this.#rules;
    const settled = this.#held.settle(settle).then(
      (answer) => this.#tell(named(answer)),
      (error: unknown) => {
        // Then its lease ends.
        this.#held.abandon();
        this.#failed(error);
        this.#tell("failed");
      },
    );
    // Waits, so that an immediate retry sees the new state.
    await within(this.#track(settled), brokerTimeoutMs, undefined);
  }

  async #store(given: Stored): Promise<Ended> {
    let stored = given;
    const retry = new Retry(PATIENCE_MS, PAUSE);
    for (;;) {
      try {
        const settled = await this.#held.settle(doneOf(stored).write());
        if (settled.answer === "ok") {
          return this.#stored(stored);
        }
        if (settled.result !== undefined) {
          this.#tell("lost");
          return { how: "replaced", result: settled.result };
        }
        return await this.#again(stored);
      } catch (error) {
        this.#failed(error);
        const isRefused = error instanceof HapaxError && !error.retryable;
        if (isRefused && stored.body !== undefined) {
          stored = { ...stored, headers: [], body: undefined };
          continue;
        }
        try {
          await retry.after(error);
        } catch {
          this.#held.abandon();
          this.#tell("failed");
          return { how: isRefused ? "refused" : "unknown" };
        }
      }
    }
  }

  /**
   * The lease is lost and nobody has finished. If nobody holds the key either, it is claimed again to
   * store the response, because discarding it would only cause a repetition.
   */
  async #again(stored: Stored): Promise<Ended> {
    let ended: Ended;
    let claim: Claim | undefined;
    try {
      claim = await this.#claim();
      if (claim instanceof Held) {
        const settled = await claim.settle(doneOf(stored).write());
        if (settled.answer === "ok") {
          return this.#stored(stored);
        }
        const { result } = settled;
        ended = result === undefined ? { how: "superseded" } : { how: "replaced", result };
      } else if (claim.answer === "done") {
        ended = { how: "replaced", result: claim.result ?? new Content("") };
      } else {
        ended = { how: "superseded" };
      }
    } catch (error) {
      if (!(error instanceof ConflictError)) {
        throw error;
      }
      ended = { how: "superseded" };
    } finally {
      if (claim instanceof Held) {
        claim.abandon();
      }
    }
    this.#tell("lost");
    return ended;
  }

  #stored(stored: Stored): Ended {
    this.#tell(isKept(stored) ? "kept" : "not_kept");
    return { how: "stored" };
  }

  #tell(how: Settlement): void {
    this.#rules.observe({ type: "settled", how });
  }

  #failed(error: unknown): void {
    const code = error instanceof HapaxError ? error.code : "internal";
    this.#rules.observe({ type: "broker_failed", code });
  }
}

function doneOf(stored: Stored): Done {
  return new Done(new Content(encode(stored), STORED_TYPE));
}
