/** The delivery of a message to a worker. */

import { Content, type WireContent } from "./content.js";
import { dateOf } from "./errors.js";
import { derive } from "./keys.js";

/** A delivery in JSON. */
export interface WireDelivery extends WireContent {
  lease: string;
  fence: string;
  tenant?: string;
  queue: string;
  key: string;
  id: string;
  attempt: number;
  generation: number;
  group?: string | null;
  headers?: Record<string, string>;
  accepted_at: string;
  lease_ms: number;
  deadline: string;
  recovery_points?: Record<string, WireContent>;
  keys_per_group?: boolean;
}

/** A message delivered to a worker. */
export class Delivery {
  readonly #wire: WireDelivery;
  #content: Content | undefined;

  constructor(wire: WireDelivery) {
    this.#wire = wire;
  }

  /** The lease, to settle with. Opaque. */
  get lease(): string {
    return this.#wire.lease;
  }

  /** Grows with every lease of the key. Decimal digits, since it outgrows a number. */
  get fence(): string {
    return this.#wire.fence;
  }

  get tenant(): string {
    return this.#wire.tenant ?? "";
  }

  get queue(): string {
    return this.#wire.queue;
  }

  get key(): string {
    return this.#wire.key;
  }

  get id(): string {
    return this.#wire.id;
  }

  /** Attempt number, from 1 on. */
  get attempt(): number {
    return this.#wire.attempt;
  }

  /** The number of replays. */
  get generation(): number {
    return this.#wire.generation;
  }

  get group(): string | null {
    return this.#wire.group ?? null;
  }

  /** Whether the queue deduplicates per group, so that the group is part of the key. */
  get keysPerGroup(): boolean {
    return this.#wire.keys_per_group ?? false;
  }

  get content(): Content {
    this.#content ??= Content.read(this.#wire);
    return this.#content;
  }

  get body(): Uint8Array {
    return this.content.bytes;
  }

  /** The body as text. Throws if it is not UTF-8. */
  get text(): string {
    return this.content.text;
  }

  /** The value of a body that is JSON. Throws if it is not. */
  json<T = unknown>(): T {
    return this.content.json<T>();
  }

  get contentType(): string | null {
    return this.#wire.content_type ?? null;
  }

  get headers(): Readonly<Record<string, string>> {
    return this.#wire.headers ?? {};
  }

  get acceptedAt(): Date {
    return dateOf(this.#wire.accepted_at) ?? new Date(0);
  }

  /** The length of the lease, counted from its last extension. */
  get leaseMs(): number {
    return this.#wire.lease_ms;
  }

  /** When the lease ends if it is not extended, by the broker's clock. */
  get deadline(): Date {
    return dateOf(this.#wire.deadline) ?? new Date(0);
  }

  /** What earlier attempts saved under the name. */
  recoveryPoint(name: string): Content | undefined {
    const points = this.#wire.recovery_points ?? {};
    const point = Object.hasOwn(points, name) ? points[name] : undefined;
    return point === undefined ? undefined : Content.read(point);
  }

  /** The names of what earlier attempts saved. */
  get recoveryPoints(): string[] {
    return Object.keys(this.#wire.recovery_points ?? {});
  }

  /** The key of what follows from this message: the same in every attempt. */
  derive(name: string): string {
    const { queue, key, generation } = this;
    return derive({ queue, group: this.keysPerGroup ? this.group : null, key, generation }, name);
  }
}
