/**
 * The bookkeeping of steps: which names are used, what earlier attempts saved, whether there is
 * room for an outcome.
 *
 * A step is one recovery point, `step:NAME`, of JSON. First it holds the intent: that the step has
 * begun, and under which key. Then the outcome replaces it. The form is that of all clients, so that
 * an attempt in one language continues one of another.
 */

import { byteLength, Content } from "../content.js";
import type { Delivery } from "../delivery.js";
import { deriveFirst } from "../keys.js";
import { Failure } from "../settle.js";

const PREFIX = "step:";
/** The broker's limits: the number of recovery points, and the bytes of their names and data. */
const POINTS_MAX = 64;
const POINTS_BYTES_MAX = 64 * 1024;
const NAME_BYTES_MAX = 128 - PREFIX.length;
/** The free space that a step requires before it calls: an outcome that cannot be stored means a
 * repeated call. */
const ROOM_BYTES = 1_024;

interface Point {
  step: "begun" | "done" | "too_large";
  key: string;
  outcome?: unknown;
  bytes?: number;
}

/** What an earlier attempt saved of a step: its outcome, or the key to call with again. */
export type Found = { outcome: unknown } | { key: string };

/** The recovery points of one message, and the steps of one attempt. */
export class Ledger {
  readonly #delivery: Delivery;
  /** Bytes of every point with its name, including the reserve of steps under way. */
  readonly #points = new Map<string, number>();
  readonly #taken = new Set<string>();

  constructor(delivery: Delivery) {
    this.#delivery = delivery;
    for (const name of delivery.recoveryPoints) {
      this.saved(name, delivery.recoveryPoint(name)?.length ?? 0);
    }
  }

  /** Reserves the name of a step for the rest of the attempt, and returns what is known of it. */
  take(name: string): Found {
    const bytes = byteLength(name);
    if (bytes < 1 || bytes > NAME_BYTES_MAX) {
      const detail = `a step's name must have 1 to ${NAME_BYTES_MAX} bytes, this one has ${bytes}`;
      throw Failure.dead(`${detail}: ${name}`);
    }
    if (this.#taken.has(name)) {
      throw Failure.dead(
        `the step ${name} is used twice in one attempt: the second would get the first one's key ` +
          `and outcome. Give every step of a message its own name (such as "${name}-2"), and ` +
          "retry a call within its step",
      );
    }
    this.#taken.add(name);
    const point = this.#delivery.recoveryPoint(pointName(name));
    return point === undefined ? { key: this.#delivery.derive(name) } : this.#found(name, point);
  }

  #found(name: string, data: Content): Found {
    const point = readPoint(data);
    if (point === undefined) {
      const detail = "was not written by a step; the step was not called";
      throw new Failure(`the recovery point ${PREFIX}${name} ${detail}`);
    }
    if (point.step !== "done") {
      // A call may have been made with this key, so the next one must use it too.
      return { key: point.key };
    }
    const { key, generation } = this.#delivery;
    const ours = [this.#delivery.derive(name), deriveFirst(key, generation, name)];
    if (!ours.includes(point.key)) {
      throw new Failure(
        `the recovery point ${PREFIX}${name} has the key ${point.key}, which belongs to another ` +
          "message; the step was not called",
      );
    }
    return { outcome: point.outcome ?? null };
  }

  /** Reserves space for the outcome of a step that is about to begin. */
  reserve(name: string): void {
    const point = pointName(name);
    const left = this.#left(point);
    const hasPlace = this.#points.has(point) || this.#points.size < POINTS_MAX;
    if (!hasPlace || left < byteLength(point) + ROOM_BYTES) {
      throw Failure.dead(
        `the step ${name} was not begun, because its outcome could not be stored: the message has ` +
          `${this.#points.size} recovery points of at most ${POINTS_MAX}, and ${left} of ` +
          `${POINTS_BYTES_MAX} bytes are left. Use fewer steps, or return smaller outcomes`,
      );
    }
    this.saved(point, ROOM_BYTES);
  }

  /** Whether a point with this data fits. */
  fits(point: string, data: Content): boolean {
    return byteLength(point) + data.length <= this.#left(point);
  }

  /** Records that a point was saved. */
  saved(point: string, bytes: number): void {
    this.#points.set(point, byteLength(point) + bytes);
  }

  /** Bytes that are left for this point, with its name. */
  #left(point: string): number {
    let others = 0;
    for (const [name, bytes] of this.#points) {
      others += name === point ? 0 : bytes;
    }
    return Math.max(0, POINTS_BYTES_MAX - others);
  }
}

export function pointName(step: string): string {
  return `${PREFIX}${step}`;
}

/** The recovery point of a step that is about to call with this key. */
export function intentOf(key: string): Content {
  return write({ step: "begun", key });
}

/** The recovery point of a step that has called, with its outcome. */
export function outcomeOf(name: string, key: string, outcome: unknown): Content {
  let text: string | undefined;
  try {
    text = JSON.stringify(outcome ?? null);
  } catch (error) {
    const detail = `the outcome of the step ${name} cannot be written as JSON`;
    throw Failure.dead(detail, error);
  }
  return new Content(`{"step":"done","key":${JSON.stringify(key)},"outcome":${text ?? "null"}}`);
}

/** The recovery point of a step that has called, whose outcome was too large. */
export function tooLargeOf(key: string, bytes: number): Content {
  return write({ step: "too_large", key, bytes });
}

export function tooLargeFailure(name: string, key: string, bytes: number): Failure {
  return Failure.dead(
    `the step ${name} made its call with the key ${key}, but its outcome of ${bytes} bytes cannot ` +
      `be stored: the recovery points of a message have at most ${POINTS_BYTES_MAX} bytes in ` +
      "total. Return less from the step, such as an id, and redrive the message: it calls again " +
      "with the same key",
  );
}

function write(point: Point): Content {
  return new Content(JSON.stringify(point));
}

function readPoint(data: Content): Point | undefined {
  try {
    const point = data.json<Partial<Point> | null>();
    const isPoint = ["begun", "done", "too_large"].includes(point?.step ?? "");
    return isPoint && typeof point?.key === "string" ? (point as Point) : undefined;
  } catch {
    return undefined;
  }
}
