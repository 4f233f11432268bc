/**
 * What operators do with a queue: its configuration, its keys, its dead messages. A method is one
 * call. Reads and `put` are retried; the others are not, since the caller decides whether a repeat
 * is safe.
 */

import type { State } from "./answer.js";
import type { CallOptions } from "./client.js";
import { Content, type Payload } from "./content.js";
import { dateOf } from "./errors.js";
import { type KeyInfo, keyInfo, type WireKey } from "./key.js";
import type { MessageOptions } from "./message.js";
import { headerText } from "./pack.js";
import type { Queue } from "./queue.js";
import { type Call, hasList, hasTexts, isObject } from "./transport.js";

/** The configuration of a queue, as the HTTP API names it. What is left out has its default. */
export interface QueueConfig {
  guarantee?: "exactly-once" | "at-least-once" | "at-most-once";
  order?: "none" | "group";
  dedup_scope?: "queue" | "group";
  /** `null` is for ever. */
  retention_ms?: number | null;
  retry_horizon_ms?: number;
  undated_keys?: "accept" | "refuse";
  lease_ms?: number;
  max_attempts?: number;
  backoff_min_ms?: number;
  backoff_max_ms?: number;
  delay_ms?: number;
  ttl_ms?: number | null;
  on_dead?: "pin" | "rerun" | "release";
  on_group_dead?: "continue" | "park";
  on_lost?: "redeliver" | "park";
  keep_bodies?: boolean;
  max_body_bytes?: number;
  max_messages?: number | null;
  max_bytes?: number | null;
  sends_per_s?: number | null;
}

/** The counts of a queue, as the HTTP API names them. */
export interface QueueStats {
  ready: number;
  held: number;
  delayed: number;
  leased: number;
  parked: number;
  dead: number;
  keys: number;
  oldest_ready_age_ms: number | null;
  sent_total: number;
  duplicate_total: number;
  done_total: number;
  failed_total: number;
  lease_lost_total: number;
}

/** A queue in JSON. */
export interface WireQueue {
  queue: string;
  config: Required<QueueConfig>;
  stats: QueueStats;
  paused: boolean;
  created_at: string;
  etag: string;
}

/** A queue with its configuration and its counts. */
export interface QueueInfo {
  queue: string;
  config: Required<QueueConfig>;
  stats: QueueStats;
  paused: boolean;
  createdAt: Date;
  etag: string;
}

/** Options of a change that may depend on the present version of a queue. */
export interface PutOptions extends CallOptions {
  /** Refuse the change if the queue has another etag; `*` if it does not exist. */
  ifMatch?: string | undefined;
  /** `*`: refuse the change if the queue exists. */
  ifNoneMatch?: "*" | undefined;
}

/** Options of what is done with a key. */
export interface KeyCallOptions extends CallOptions {
  /** The group of the key, in a queue that deduplicates per group. */
  group?: string | undefined;
}

/** Which dead messages to redrive: exactly one of `keys`, `filter` and `all`. */
export interface Redrive {
  /** A redrive repeated under its id moves nothing twice. */
  id?: string;
  keys?: string[];
  group?: string;
  filter?: { error_contains?: string; group?: string; dead_before?: string; dead_after?: string };
  all?: boolean;
  dry_run?: boolean;
  /** Messages per second. */
  per_s?: number;
}

/** The progress of a redrive. */
export interface RedriveProgress {
  id: string;
  matched: number;
  moved: number;
  total: number | null;
  missing: string[];
  done: boolean;
  cancelled: boolean;
  dry_run: boolean;
}

function isQueue(body: unknown): boolean {
  return (
    hasTexts("queue")(body) &&
    isObject((body as WireQueue).config) &&
    isObject((body as WireQueue).stats)
  );
}

/** Reads a queue. */
export function queueInfo(wire: WireQueue): QueueInfo {
  const { created_at, ...rest } = wire;
  return { ...rest, createdAt: dateOf(created_at) ?? new Date(0) };
}

/** The operator's calls of one queue. */
export class Admin {
  readonly #queue: Queue;

  constructor(queue: Queue) {
    this.#queue = queue;
  }

  /** Creates the queue, or changes its configuration. What is left out has its default. */
  async put(config: QueueConfig = {}, options: PutOptions = {}): Promise<QueueInfo> {
    const headers: Record<string, string> = {};
    if (options.ifMatch !== undefined) {
      headers["if-match"] = options.ifMatch;
    }
    if (options.ifNoneMatch !== undefined) {
      headers["if-none-match"] = options.ifNoneMatch;
    }
    const path = this.#queue.path;
    const call = { method: "PUT", path, json: config, headers, isAnswer: isQueue } as const;
    // A repeat of a conditional change would not match its own first try.
    const isPlain = options.ifMatch === undefined && options.ifNoneMatch === undefined;
    const { client } = this.#queue;
    const reply = isPlain
      ? await client.retried<WireQueue>(call, options)
      : await client.once<WireQueue>(call, options);
    return queueInfo(reply.body);
  }

  async get(options: CallOptions = {}): Promise<QueueInfo> {
    const call = { path: this.#queue.path, isAnswer: isQueue };
    return queueInfo((await this.#queue.client.retried<WireQueue>(call, options)).body);
  }

  /** Deletes the queue with its messages and keys. */
  async delete(options: CallOptions & { ifMatch?: string } = {}): Promise<void> {
    const headers = options.ifMatch === undefined ? {} : { "if-match": options.ifMatch };
    const isAnswer: Call["isAnswer"] = (_body, status) => status === 204;
    await this.#once({ method: "DELETE", path: this.#queue.path, headers, isAnswer }, options);
  }

  /** Stops deliveries. */
  async pause(options: CallOptions = {}): Promise<QueueInfo> {
    return this.#change("pause", {}, options);
  }

  async resume(options: CallOptions = {}): Promise<QueueInfo> {
    return this.#change("resume", {}, options);
  }

  /** Removes the waiting messages. With `keys`, all keys are forgotten too. */
  async purge(options: CallOptions & { keys?: boolean } = {}): Promise<QueueInfo> {
    return this.#change("purge", options.keys ? { keys: true } : {}, options);
  }

  /** The messages in a state, oldest first, without leasing them. */
  async *browse(
    state: Exclude<State, "done" | "discarded">,
    options: CallOptions & { pageSize?: number } = {},
  ): AsyncGenerator<KeyInfo> {
    let cursor: string | null = null;
    do {
      const query = new URLSearchParams({ state, limit: String(options.pageSize ?? 100) });
      if (cursor !== null) {
        query.set("cursor", cursor);
      }
      const call = {
        path: `${this.#queue.path}/messages?${query}`,
        isAnswer: hasList("messages"),
      };
      type Page = { messages: WireKey[]; next: string | null };
      const page: Page = (await this.#queue.client.retried<Page>(call, options)).body;
      yield* page.messages.map(keyInfo);
      cursor = page.next ?? null;
    } while (cursor !== null);
  }

  /** Makes a finished key unknown again. */
  async forget(key: string, options: KeyCallOptions = {}): Promise<void> {
    await this.#verb(key, "forget", {}, options);
  }

  /**
   * Runs a finished message again, as its next generation. Unless the queue has `keep_bodies`, the
   * same message must be given again.
   */
  async replay(
    key: string,
    message?: { body: Payload } & MessageOptions,
    options: KeyCallOptions = {},
  ): Promise<void> {
    if (message === undefined) {
      await this.#verb(key, "replay", {}, options);
      return;
    }
    const content = Content.of(message.body, message.contentType);
    const headers: Record<string, string> = {};
    const put = (name: string, value: string | null | undefined): void => {
      if (value !== undefined && value !== null) {
        headers[name] = headerText(name, value);
      }
    };
    put("content-type", content.contentType);
    put("hapax-group", message.group);
    put("hapax-fingerprint", message.fingerprint);
    for (const [name, value] of Object.entries(message.headers ?? {})) {
      put(`hapax-header-${name}`, value);
    }
    await this.#verb(key, "replay", { headers, bytes: content.bytes }, options);
  }

  /** Makes a dead message ready again. */
  async redriveKey(key: string, options: KeyCallOptions = {}): Promise<void> {
    await this.#verb(key, "redrive", {}, options);
  }

  /** Discards a message that is dead, parked or waiting; its key stays remembered. */
  async discard(key: string, options: KeyCallOptions = {}): Promise<void> {
    await this.#verb(key, "discard", {}, options);
  }

  /** Resolves a parked message: its effect happened, with this result, or it is retried. */
  async resolve(
    key: string,
    resolution: { do: "done"; result?: Payload } | { do: "retry" },
    options: KeyCallOptions = {},
  ): Promise<void> {
    const result = resolution.do === "done" ? resolution.result : undefined;
    const json =
      result === undefined
        ? { do: resolution.do }
        : { do: resolution.do, result: Content.of(result).write() };
    await this.#verb(key, "resolve", { json }, options);
  }

  /** Starts a redrive of dead messages, and returns how far it is. */
  async redrive(redrive: Redrive, options: CallOptions = {}): Promise<RedriveProgress> {
    const path = `${this.#queue.path}/redrive`;
    return this.#once({ method: "POST", path, json: redrive }, options);
  }

  async redriveProgress(id: string, options: CallOptions = {}): Promise<RedriveProgress> {
    return this.#once({ path: this.#redrivePath(id) }, options);
  }

  /** Stops a redrive. Messages that it has moved stay moved. */
  async cancelRedrive(id: string, options: CallOptions = {}): Promise<RedriveProgress> {
    return this.#once({ method: "DELETE", path: this.#redrivePath(id) }, options);
  }

  #redrivePath(id: string): string {
    return `${this.#queue.path}/redrive/${encodeURIComponent(id)}`;
  }

  async #change(verb: string, json: object, options: CallOptions): Promise<QueueInfo> {
    const path = `${this.#queue.path}/${verb}`;
    const call = { method: "POST", path, json, isAnswer: isQueue } as const;
    return queueInfo(await this.#once<WireQueue>(call, options));
  }

  async #verb(
    key: string,
    verb: string,
    call: Partial<Call>,
    options: KeyCallOptions,
  ): Promise<void> {
    const path = this.#queue.keyPath(key, `/${verb}`, options.group);
    await this.#once({ ...call, method: "POST", path }, options);
  }

  async #once<T>(call: Omit<Call, "timeoutMs">, options: CallOptions): Promise<T> {
    return (await this.#queue.client.once<T>(call, options)).body;
  }
}
