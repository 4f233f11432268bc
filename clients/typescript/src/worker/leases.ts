/**
 * The leases that a worker holds, and when each must be extended.
 *
 * Times are those of the monotonic clock, given as arguments, and lengths those that the broker
 * reported: the two wall clocks are never compared. Nothing here sets a timer or calls the broker.
 */

/** A lease is extended after this part of it, which leaves time for a second try. */
const EXTEND_AT = 0.4;
/** An extension that did not reach the broker is tried again after this part of the lease. */
const AGAIN_AT = 0.1;

/** A lease that is held. */
export class Hold {
  readonly lease: string;
  readonly lengthMs: number;
  /** Held until then, if the last extension was lost. */
  until: number;
  /** Requested by a handler: no automatic extension may end before. */
  wanted: number;
  due: number;
  /** An extension was sent and not answered. */
  isAsked = false;
  isLost = false;

  constructor(lease: string, lengthMs: number, now: number) {
    this.lease = lease;
    this.lengthMs = lengthMs;
    this.until = now + lengthMs;
    this.wanted = this.until;
    this.due = now + lengthMs * EXTEND_AT;
  }
}

/** What to do about a lease now. */
export type Due<H> = { do: "extend"; hold: H; lengthMs: number } | { do: "lose"; hold: H };

/** The leases of one worker. */
export class Leases<H extends Hold> {
  readonly #held = new Set<H>();

  get size(): number {
    return this.#held.size;
  }

  all(): IterableIterator<H> {
    return this.#held.values();
  }

  take(hold: H): void {
    this.#held.add(hold);
  }

  /** Removes a lease that is settled or lost. */
  drop(hold: H): void {
    this.#held.delete(hold);
  }

  has(hold: H): boolean {
    return this.#held.has(hold);
  }

  /** Whether another worker may have the message by now. */
  isLost(hold: H, now: number): boolean {
    return hold.isLost || hold.until <= now || !this.#held.has(hold);
  }

  /**
   * The broker extended it. Counted from before the call, so that the deadline here is not later
   * than the broker's.
   */
  extended(hold: H, until: number): void {
    hold.isAsked = false;
    hold.until = Math.max(hold.until, until);
  }

  /** The broker could not extend it now; it is tried again soon, if there is time. */
  notExtended(hold: H, now: number): void {
    hold.isAsked = false;
    hold.due = Math.min(hold.due, now + hold.lengthMs * AGAIN_AT, Math.max(hold.until, now));
  }

  /**
   * A handler asks for a longer lease: no automatic extension may shorten it. Returns the length to
   * ask for, which is not below the present one.
   */
  want(hold: H, lengthMs: number, now: number): number {
    hold.wanted = Math.max(hold.wanted, hold.until, now + lengthMs);
    return hold.wanted - now;
  }

  /** A handler's extension was answered: the lease is held until then, or unchanged. */
  granted(hold: H, until: number | undefined): void {
    if (until === undefined) {
      hold.wanted = hold.until;
    } else {
      hold.until = Math.max(hold.until, until);
    }
  }

  /** When the next lease must be looked at. */
  nextDue(): number {
    let next = Number.POSITIVE_INFINITY;
    for (const hold of this.#held) {
      if (!hold.isLost && hold.due < next) {
        next = hold.due;
      }
    }
    return next;
  }

  /** The leases to extend or to give up now. */
  due(now: number): Due<H>[] {
    const list: Due<H>[] = [];
    for (const hold of this.#held) {
      if (hold.isLost || hold.due > now) {
        continue;
      }
      if (hold.until <= now) {
        list.push({ do: "lose", hold });
        continue;
      }
      if (!hold.isAsked) {
        hold.isAsked = true;
        list.push({ do: "extend", hold, lengthMs: Math.max(hold.lengthMs, hold.wanted - now) });
      }
      // Looked at again for the next extension, and when it would end.
      hold.due = Math.min(now + hold.lengthMs * EXTEND_AT, hold.until);
    }
    return list;
  }
}
