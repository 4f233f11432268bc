/**
 * One run of a worker: it receives, starts handlers, extends every lease from its receipt, tells
 * handlers whose lease is lost, and settles what they return. Leases outlive connections: a message
 * that is finished while the broker cannot be reached is settled when it is back.
 */

import { setMaxListeners } from "node:events";
import type { Payload } from "../content.js";
import type { Delivery } from "../delivery.js";
import { HapaxError, isPassing, LeaseLostError } from "../errors.js";
import { newKey } from "../keys.js";
import type { Queue } from "../queue.js";
import { now, Retry, sleep, timerMs } from "../retry.js";
import {
  Done,
  doneOf,
  errorText,
  failureOf,
  parkOf,
  type Settle,
  type Settled,
} from "../settle.js";
import { Context } from "./context.js";
import { Hold, Leases } from "./leases.js";
import { Settler } from "./settler.js";
import type { Handler, WorkerEvent } from "./worker.js";

/** How long a receive waits at the broker. */
const WAIT_MS = 20_000;
/** How long beyond its wait a receive may take. */
const SLACK_MS = 10_000;
/** A settle with a retryable refusal is sent again after this long, or what the broker asks for. */
const AGAIN = { firstMs: 500, longestMs: 500 };
/** How long to wait for the answers to the last settles. */
const LAST_ANSWERS_MS = 5_000;
/** The most messages of one receive. */
const RECEIVE_MAX = 1_000;
const STOPPED = "the worker stopped before it was finished";

/** The limits of a worker. */
export interface Limits {
  concurrency: number;
  prefetch: number;
  drainMs: number;
  leaseMs: number | undefined;
  name: string;
}

/** A delivery, from its receipt to the answer to its settle. */
class Work extends Hold {
  readonly delivery: Delivery;
  /** Made when somebody asks for the signal, which most handlers never do. */
  #controller: AbortController | undefined;
  /** Why the handler should stop. */
  aborted: LeaseLostError | undefined;
  /** The handler has ended, or was given up: what it returns later is ignored. */
  hasEnded = false;

  constructor(delivery: Delivery, at: number) {
    super(delivery.lease, delivery.leaseMs, at);
    this.delivery = delivery;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      setMaxListeners(0, this.#controller.signal);
      if (this.aborted !== undefined) {
        this.#controller.abort(this.aborted);
      }
    }
    return this.#controller.signal;
  }

  abort(why: LeaseLostError): void {
    this.aborted ??= why;
    this.#controller?.abort(this.aborted);
  }
}

export class Driver {
  readonly #queue: Queue;
  readonly #handler: Handler;
  readonly #limits: Limits;
  readonly #observe: (event: WorkerEvent) => void;
  readonly #leases = new Leases<Work>();
  readonly #settler: Settler;
  readonly #stopping = new AbortController();
  readonly #receiving = new AbortController();
  readonly #running = new Set<Work>();
  /** Deliveries that no handler has started. */
  #waiting: Work[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;
  /** Handlers may continue until then, after a stop. */
  #drainUntil = 0;
  readonly #again = new Retry(undefined, AGAIN);
  /** Settles that wait to be sent again. */
  readonly #pauses = new Set<NodeJS.Timeout>();
  /** What the run waits for. */
  #awaited: { isSo: () => boolean; wake: () => void } | undefined;
  /** The run has ended: nothing is sent again. */
  #isOver = false;
  isAway = false;
  /** When the broker last answered. */
  contactAt: number | undefined;

  constructor(
    queue: Queue,
    handler: Handler,
    limits: Limits,
    observe: (event: WorkerEvent) => void,
  ) {
    this.#queue = queue;
    this.#handler = handler;
    this.#limits = limits;
    this.#observe = observe;
    this.#settler = new Settler(queue);
    setMaxListeners(0, this.#stopping.signal);
  }

  get running(): number {
    return this.#running.size;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get held(): number {
    return this.#leases.size;
  }

  get isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** Runs until it is stopped and drained. Throws the error that ended it, after the drain. */
  async run(): Promise<void> {
    let failure: unknown;
    const receiving = this.#receive().catch((error: unknown) => {
      failure = error;
      this.stop();
    });
    await receiving;
    try {
      await this.#drain();
    } finally {
      this.#isOver = true;
      clearTimeout(this.#timer);
      for (const pause of this.#pauses) {
        clearTimeout(pause);
      }
    }
    if (failure !== undefined) {
      throw failure;
    }
  }

  /** Takes no more messages, and gives back those that no handler has started. */
  stop(drainMs = this.#limits.drainMs): void {
    if (this.isStopping) {
      return;
    }
    this.#drainUntil = now() + drainMs;
    this.#stopping.abort();
    this.#receiving.abort();
    for (const work of this.#waiting.splice(0)) {
      this.#end(work, { do: "release" });
    }
    this.#changed();
  }

  async #receive(): Promise<void> {
    const isTime = (): boolean => this.isStopping || this.#room() > 0;
    while (!this.isStopping) {
      const room = this.#room();
      if (room > 0) {
        await this.#receiveOnce(Math.min(room, RECEIVE_MAX));
      } else {
        await this.#until(isTime);
      }
    }
  }

  /** The number of messages to receive now. */
  #room(): number {
    const most = this.#limits.concurrency + this.#limits.prefetch;
    const room = most - this.#leases.size;
    // In batches, unless a handler would have nothing to do.
    return room * 4 >= most || this.#waiting.length === 0 ? room : 0;
  }

  /** One receive, repeated under its id until it is answered. */
  async #receiveOnce(max: number): Promise<void> {
    const receiveId = newKey();
    const retry = new Retry();
    for (let tries = 1; ; tries += 1) {
      const { signal } = this.#receiving;
      try {
        const deliveries = await this.#ask(max, WAIT_MS, receiveId, signal);
        this.#back();
        await this.#take(deliveries, tries > 1);
        return;
      } catch (error) {
        if (signal.aborted) {
          await this.#giveBack(max, receiveId);
          return;
        }
        // A proxy's refusal is a wrong address, unless the broker has answered there before.
        const isKnown = this.contactAt !== undefined;
        if (!(error instanceof HapaxError && (isKnown ? isPassing(error) : error.retryable))) {
          throw error;
        }
        this.#away(error);
        await sleep(retry.nextPause(error.retryAfterMs), signal).catch(() => undefined);
      }
    }
  }

  #ask(max: number, waitMs: number, receiveId: string, signal?: AbortSignal): Promise<Delivery[]> {
    const { leaseMs, name } = this.#limits;
    const timeoutMs = SLACK_MS;
    return this.#queue.receive({
      max,
      waitMs,
      leaseMs,
      worker: name,
      receiveId,
      timeoutMs,
      signal,
    });
  }

  /** The answer to a receive that was cut off may have held messages: asked again, they come back. */
  async #giveBack(max: number, receiveId: string): Promise<void> {
    try {
      const deliveries = await this.#ask(max, 0, receiveId);
      await this.#take(deliveries, false);
    } catch {
      // Then their leases end.
    }
  }

  async #take(deliveries: Delivery[], isRepeated: boolean): Promise<void> {
    const at = now();
    let taken = deliveries.map((delivery) => new Work(delivery, at));
    if (isRepeated) {
      taken = await this.#extended(taken);
    }
    for (const work of taken) {
      this.#leases.take(work);
      if (this.isStopping) {
        this.#end(work, { do: "release" });
      } else {
        this.#waiting.push(work);
        this.#arm(work.due);
      }
    }
    this.#start();
  }

  /**
   * An earlier try of the receive may have got the leases, so that nobody knows how much of them is
   * over: they are extended before a handler begins. An extension whose answer is lost is repeated,
   * as long as the lease may be held.
   */
  async #extended(works: Work[]): Promise<Work[]> {
    const extend = async (work: Work): Promise<Work | undefined> => {
      const retry = new Retry(work.lengthMs);
      for (;;) {
        const asked = now();
        const answer = await this.#settled(work, { do: "extend", lease_ms: work.lengthMs });
        if (!(answer instanceof HapaxError)) {
          this.#leases.extended(work, asked + work.lengthMs);
          return answer.answer === "ok" ? work : undefined;
        }
        if (!isPassing(answer) || !(await retry.pause(answer.retryAfterMs))) {
          return undefined;
        }
      }
    };
    const extended = await Promise.all(works.map(extend));
    return extended.filter((work) => work !== undefined);
  }

  /** Starts handlers for waiting deliveries, as long as there are free ones. */
  #start(): void {
    while (this.#running.size < this.#limits.concurrency) {
      const work = this.#waiting.shift();
      if (work === undefined) {
        return;
      }
      this.#running.add(work);
      void this.#handle(work);
    }
  }

  async #handle(work: Work): Promise<void> {
    const { delivery } = work;
    const context = new Context(delivery, work, this.#stopping.signal, this);
    let settle: Settle;
    try {
      settle = resultOf(await this.#handler(delivery, context));
    } catch (error) {
      settle = failureOf(error);
    }
    this.#running.delete(work);
    if (!work.hasEnded) {
      work.hasEnded = true;
      this.#end(work, settle);
    }
    this.#start();
    this.#changed();
  }

  /** Sends the final settle of a lease. The lease is extended until the answer arrives. */
  #end(work: Work, settle: Settle): void {
    // A late success is still reported. A late failure is not: another worker has the message, or
    // it is in doubt and must stay so.
    if (settle.do !== "done" && this.#leases.isLost(work, now())) {
      this.#lose(work);
      this.#forget(work);
      return;
    }
    this.#settler.settle(work.lease, settle, (answer) => this.#endAnswered(work, settle, answer));
  }

  #endAnswered(work: Work, settle: Settle, answer: Settled | HapaxError): void {
    if (answer instanceof HapaxError) {
      const isRetried = isPassing(answer);
      if (isRetried && !this.#isOver) {
        this.#away(answer);
        const pause = setTimeout(
          () => {
            this.#pauses.delete(pause);
            this.#end(work, settle);
          },
          timerMs(this.#again.nextPause(answer.retryAfterMs)),
        );
        this.#pauses.add(pause);
        return;
      }
      if (settle.do === "done" && !isRetried) {
        // Another attempt would not help. Only the broker knows whether an effect has begun.
        this.#end(work, parkOf(`the result was refused: ${answer.message}`, true));
        return;
      }
    } else {
      this.#back();
    }
    this.#observe({ type: "settled", delivery: work.delivery, settle: settle.do, answer });
    this.#forget(work);
  }

  #forget(work: Work): void {
    this.#leases.drop(work);
    this.#changed();
  }

  #lose(work: Work): void {
    if (work.isLost) {
      return;
    }
    work.isLost = true;
    this.#observe({ type: "lost", delivery: work.delivery });
    const place = this.#waiting.indexOf(work);
    if (place >= 0) {
      // No handler has started it, and none will.
      this.#waiting.splice(place, 1);
      this.#forget(work);
    } else {
      work.abort(new LeaseLostError());
    }
  }

  /** Settles for a handler, until it is answered or the lease is lost. */
  async keep(work: Work, settle: Settle): Promise<void> {
    const retry = new Retry();
    for (;;) {
      if (work.aborted !== undefined || work.hasEnded) {
        throw work.aborted ?? new LeaseLostError();
      }
      const answer = await this.#settled(work, settle);
      if (!(answer instanceof HapaxError)) {
        if (answer.answer === "ok") {
          return;
        }
        this.#lose(work);
        throw new LeaseLostError();
      }
      if (!isPassing(answer)) {
        throw answer;
      }
      await retry.pause(answer.retryAfterMs, work.signal);
    }
  }

  /** Extends a lease for a handler. */
  async extendFor(work: Work, leaseMs: number | undefined): Promise<void> {
    const asked = now();
    const length = this.#leases.want(work, leaseMs ?? work.lengthMs, asked);
    try {
      await this.keep(work, { do: "extend", lease_ms: Math.ceil(length) });
      this.#leases.granted(work, asked + length);
    } catch (error) {
      this.#leases.granted(work, undefined);
      throw error;
    }
  }

  #settled(work: Work, settle: Settle): Promise<Settled | HapaxError> {
    return new Promise((resolve) => this.#settler.settle(work.lease, settle, resolve));
  }

  /** Wakes up when the next lease must be looked at. */
  #arm(at: number): void {
    if (at < this.#timerAt && !this.#isOver) {
      clearTimeout(this.#timer);
      this.#timerAt = at;
      this.#timer = setTimeout(() => this.#tick(), timerMs(Math.max(1, Math.ceil(at - now()))));
    }
  }

  #tick(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const at = now();
    for (const due of this.#leases.due(at)) {
      if (due.do === "lose") {
        this.#lose(due.hold);
      } else {
        this.#extend(due.hold, due.lengthMs, at);
      }
    }
    this.#arm(this.#leases.nextDue());
  }

  #extend(work: Work, length: number, asked: number): void {
    const settle: Settle = { do: "extend", lease_ms: Math.ceil(length) };
    this.#settler.settle(work.lease, settle, (answer) => {
      if (answer instanceof HapaxError) {
        this.#leases.notExtended(work, now());
        if (this.#leases.has(work)) {
          this.#arm(work.due);
        }
      } else if (answer.answer === "ok") {
        this.#leases.extended(work, asked + length);
      } else if (this.#leases.has(work)) {
        this.#lose(work);
      }
    });
  }

  async #drain(): Promise<void> {
    const isIdle = (): boolean => this.#leases.size === 0 && this.#running.size === 0;
    await this.#changeUntil(() => this.#running.size === 0, this.#drainUntil);
    for (const work of this.#running) {
      work.hasEnded = true;
      this.#end(work, parkOf(STOPPED));
      work.abort(new LeaseLostError(STOPPED));
    }
    this.#running.clear();
    await this.#changeUntil(isIdle, now() + LAST_ANSWERS_MS);
  }

  /** Waits for a condition, at most until then. */
  async #changeUntil(isSo: () => boolean, until: number): Promise<void> {
    while (!isSo() && now() < until) {
      // A timer may fire before its time by this clock: it wakes the loop, which looks again.
      const timer = setTimeout(() => this.#wake(), timerMs(until - now() + 1));
      await this.#until(isSo);
      clearTimeout(timer);
    }
  }

  #until(isSo: () => boolean): Promise<void> {
    return new Promise((wake) => {
      this.#awaited = { isSo, wake };
    });
  }

  /** Wakes the run if what it waits for holds now, which most messages do not change. */
  #changed(): void {
    if (this.#awaited?.isSo()) {
      this.#wake();
    }
  }

  #wake(): void {
    this.#awaited?.wake();
    this.#awaited = undefined;
  }

  #away(error: HapaxError): void {
    if (!this.isAway) {
      this.isAway = true;
      this.#observe({ type: "away", error });
    }
  }

  #back(): void {
    this.contactAt = now();
    if (this.isAway) {
      this.isAway = false;
      this.#observe({ type: "back" });
    }
  }
}

/** The settle of what a handler returned. */
function resultOf(result: Awaited<ReturnType<Handler>>): Settle {
  try {
    return result instanceof Done ? result.write() : doneOf(result as Payload | undefined);
  } catch (error) {
    // Another attempt would return the same.
    return parkOf(`the result was refused: ${errorText(error)}`, true);
  }
}
