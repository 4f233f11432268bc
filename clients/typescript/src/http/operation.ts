/** The handler's access to its operation. */

import type { Held } from "../claim.js";
import type { Content, Payload } from "../content.js";
import type { Remember } from "./options.js";

/**
 * The operation of a protected request. A handler can save recovery points, which the next attempt
 * under the key reads if this process dies, and derive keys for other services that are the same in
 * every attempt.
 */
export class Operation {
  /** The client's key. */
  readonly key: string;
  /** The key of the claim at the broker, a digest. */
  readonly claimKey: string;
  readonly tenant: string;
  readonly #held: Held;
  /** What the handler chose, instead of the policy. @internal */
  chosen: Remember | undefined;

  /** @internal */
  constructor(key: string, claimKey: string, tenant: string, held: Held) {
    this.key = key;
    this.claimKey = claimKey;
    this.tenant = tenant;
    this.#held = held;
  }

  /**
   * Grows with every attempt. Store it with the effect and compare it, as a `BigInt`, so that a late
   * attempt does not overwrite a newer one.
   */
  get fence(): string {
    return this.#held.fence;
  }

  /** Aborted when the lease of the key is lost: another attempt may have the key then. */
  get signal(): AbortSignal {
    return this.#held.signal;
  }

  /** The key for a call to another service: the same for every attempt. */
  derive(name: string): string {
    return this.#held.derive(name);
  }

  /** Saves a recovery point for the next attempt. At most 64, and 64 KiB together. */
  async save(name: string, data: Payload): Promise<void> {
    await this.#held.save(name, data);
  }

  /** What an earlier attempt saved before it failed or its process died. */
  recoveryPoint(name: string): Content | undefined {
    return this.#held.recoveryPoint(name);
  }

  /**
   * Says what becomes of the key, whatever the policy says: a 503 after the money has moved must be
   * `keep` or `in_doubt`.
   */
  remember(remember: Remember): void {
    this.chosen = remember;
  }
}
