/** The client of one broker, which all its queues share. It holds no connection and no other state. */

import type { Admin, QueueInfo, WireQueue } from "./admin.js";
import { queueInfo } from "./admin.js";
import { checkMs } from "./message.js";
import { Queue } from "./queue.js";
import { Retry } from "./retry.js";
import { type Call, type Fetch, hasList, type Reply, Transport } from "./transport.js";

/** How long a call is retried, unless the client has another timeout. */
const TIMEOUT_MS = 30_000;
/** A try that hangs is given up after this, and made again while there is time. */
const TRY_MS = 10_000;

/** The settings of a client. */
export interface ClientOptions {
  /** API token. */
  token?: string | undefined;
  /** How long a call may take with its retries; 30 s by default. */
  timeoutMs?: number | undefined;
  /** Instead of the global `fetch`: for a dispatcher or a certificate of one's own. */
  fetch?: Fetch | undefined;
}

/** What every call takes. */
export interface CallOptions {
  /** How long the call may take with its retries, instead of the client's timeout. */
  timeoutMs?: number | undefined;
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
}

/**
 * A client of a broker.
 *
 * ```ts
 * const client = new Client("http://127.0.0.1:4747");
 * const orders = client.queue("orders");
 * await orders.send("three lemons", { key: "order-42" });
 * ```
 */
export class Client {
  readonly timeoutMs: number;
  readonly #transport: Transport;

  constructor(url = "http://127.0.0.1:4747", options: ClientOptions = {}) {
    this.#transport = new Transport(url, options.token, options.fetch);
    this.timeoutMs = checkMs("timeoutMs", options.timeoutMs ?? TIMEOUT_MS);
  }

  get url(): string {
    return this.#transport.url;
  }

  /** A queue of the broker, whether or not it exists. */
  queue(name: string): Queue {
    return new Queue(this, name);
  }

  /** The queues that the token may see. */
  async queues(options: CallOptions = {}): Promise<QueueInfo[]> {
    const call = { path: "/queues", isAnswer: hasList("queues") };
    const { body } = await this.retried<{ queues: WireQueue[] }>(call, options);
    return body.queues.map(queueInfo);
  }

  /** Waits until the broker is ready to serve, for at most the timeout. */
  async ready(options: CallOptions = {}): Promise<void> {
    const isAnswer: Call["isAnswer"] = (_body, _status, text) => text.trim() === "ready";
    await this.retried({ path: "//readyz", isAnswer }, options);
  }

  /** How long a call may take with its retries. Throws if that is not a time. @internal */
  timeoutOf(options: CallOptions): number {
    return checkMs("timeoutMs", options.timeoutMs ?? this.timeoutMs);
  }

  /** Calls once. @internal */
  async once<T>(
    call: Omit<Call, "timeoutMs">,
    options: CallOptions,
    waitMs = 0,
  ): Promise<Reply<T>> {
    const timeoutMs = this.timeoutOf(options) + waitMs;
    return this.#transport.call({ ...call, timeoutMs, signal: options.signal });
  }

  /** Calls until there is an answer, for calls that may be repeated. @internal */
  async retried<T>(call: Omit<Call, "timeoutMs">, options: CallOptions): Promise<Reply<T>> {
    const retry = new Retry(this.timeoutOf(options));
    return retry.run(() => this.tried(call, retry, options.signal), options.signal);
  }

  /** One try of a call that is retried; one that waits at the broker takes so much longer. @internal */
  tried<T>(
    call: Omit<Call, "timeoutMs">,
    retry: Retry,
    signal: AbortSignal | undefined,
    waitMs = 0,
  ): Promise<Reply<T>> {
    const timeoutMs = Math.min(TRY_MS + waitMs, Math.max(retry.leftMs, 1) + waitMs);
    return this.#transport.call({ ...call, timeoutMs, signal });
  }
}

export type { Admin };
