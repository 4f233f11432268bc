/** A queue: sends, waits, claims and look-ups. Workers are in `worker.ts`. */

import { Admin } from "./admin.js";
import { Answer, answerOf, isState, outcomeOf, type WireAnswer } from "./answer.js";
import { type Claim, type ClaimOptions, claim } from "./claim.js";
import type { CallOptions, Client } from "./client.js";
import type { Payload } from "./content.js";
import { Delivery, type WireDelivery } from "./delivery.js";
import { HapaxError, InvalidError, TooLargeError, UnavailableError } from "./errors.js";
import { type KeyInfo, keyInfo, type WireKey } from "./key.js";
import { checkKey, newKey } from "./keys.js";
import { type Message, type MessageOptions, wholeMs } from "./message.js";
import { packed, type Written, written } from "./pack.js";
import { now, Retry } from "./retry.js";
import { type Settled, settledOf, type WireSettle, type WireSettled } from "./settle.js";
import { hasList, hasTexts } from "./transport.js";

/** The longest wait of one call; longer waits take several calls. */
const WAIT_MS_MAX = 20_000;

/** Options of a single send. */
export interface SendOptions extends MessageOptions, CallOptions {}

/** Options of a look-up. */
export interface KeyOptions extends CallOptions {
  /** The group of the key, in a queue that deduplicates per group. */
  group?: string | undefined;
  /** Wait for this long for the message to be done, dead or parked. */
  waitMs?: number | undefined;
}

/** Options of a receive: see the HTTP API. */
export interface ReceiveOptions extends CallOptions {
  /** The most messages; 10 by default. */
  max?: number | undefined;
  /** How long to wait for the first one. */
  waitMs?: number | undefined;
  leaseMs?: number | undefined;
  /** The worker's name, shown in histories. */
  worker?: string | undefined;
  /** A receive repeated under its id gets the same messages and leases. */
  receiveId?: string | undefined;
  severalPerGroup?: boolean | undefined;
}

/** The place of a message in a list, with its key and as it is sent. */
interface Place {
  index: number;
  key: string;
  written: Written;
}

/** A queue of a broker. */
export class Queue {
  readonly client: Client;
  readonly name: string;
  /** What operators do: configuration, pauses, redrives, keys. */
  readonly admin: Admin;
  readonly path: string;

  constructor(client: Client, name: string) {
    if (typeof name !== "string" || !name.isWellFormed() || /^\.{0,2}$/.test(name)) {
      // The broker refuses other names that are not valid; a URL would make another path of these.
      throw new InvalidError(`"${name}" is not the name of a queue`);
    }
    this.client = client;
    this.name = name;
    this.path = `/queues/${encodeURIComponent(name)}`;
    this.admin = new Admin(this);
  }

  /**
   * Sends a message and waits until it is durable.
   *
   * Retries under the same key while the broker cannot be reached or answers with a retryable
   * error, for at most the timeout. A known key is a success too: see {@link Answer}. A message
   * without a key gets one; if it is unknown whether it was accepted, `error.key` is that key.
   */
  async send(body: Payload, options: SendOptions = {}): Promise<Answer> {
    const { timeoutMs, signal, ...rest } = options;
    const [answer] = await this.#sendAll([{ ...rest, body }], { timeoutMs, signal });
    if (answer instanceof Answer) {
      return answer;
    }
    throw answer ?? noAnswer();
  }

  /**
   * Sends many messages and returns the answers in the same order. A refusal of one message is an
   * error in its place and does not affect the others. Only an abort throws.
   *
   * Messages that the broker did not answer within the timeout get the error of the connection; those
   * that came without a key with their generated key in it.
   */
  async sendAll(
    messages: Iterable<Message>,
    options: CallOptions = {},
  ): Promise<(Answer | HapaxError)[]> {
    return this.#sendAll([...messages], options);
  }

  /**
   * Sends a message and waits until it is done, dead or parked, for at most `waitMs`. If the time
   * ends first, the answer is `accepted` or `in_flight`, and calling again with the same key
   * continues to wait.
   */
  async sendAndWait(
    body: Payload,
    options: SendOptions & { waitMs?: number | undefined } = {},
  ): Promise<Answer> {
    const { waitMs = this.client.timeoutMs, ...rest } = options;
    const until = now() + wholeMs("waitMs", waitMs);
    const key = rest.key ?? newKey();
    try {
      const answer = await this.send(body, { ...rest, key });
      return await this.#wait(answer, key, until, rest);
    } catch (error) {
      throw rest.key === undefined ? withKey(error, key) : error;
    }
  }

  /**
   * Claims a key, to do the work in this process: no message is delivered to a worker.
   *
   * ```ts
   * const claim = await charges.claim("charge-7", { body: "17 euro" });
   * switch (claim.answer) {
   *   case "fresh":
   *     await claim.complete("charged");
   *     break;
   *   case "done":
   *     reply(claim.result?.text);
   * }
   * ```
   */
  async claim(key: string, options: ClaimOptions = {}): Promise<Claim> {
    checkKey(key);
    return claim(this, key, options);
  }

  /** Everything about a key, with its result and its history. */
  async key(key: string, options: KeyOptions = {}): Promise<KeyInfo> {
    const waitMs = wholeMs("waitMs", options.waitMs ?? 0);
    const retry = new Retry(this.client.timeoutOf(options) + waitMs);
    const until = now() + waitMs;
    for (;;) {
      const asked = now();
      const left = Math.ceil(Math.min(Math.max(0, until - asked), WAIT_MS_MAX));
      const path = this.keyPath(key, "", options.group, { wait_ms: String(left) });
      const call = { path, isAnswer: isKey };
      const look = () => this.client.tried<WireKey>(call, retry, options.signal, left);
      const { body } = await retry.run(look, options.signal);
      const info = keyInfo(body);
      // A broker that does not wait, because it is stopping, is not asked again at once.
      const isEarly = now() < asked + left / 2;
      if (
        outcomeOf(info.state) !== "in_flight" ||
        now() >= until ||
        (isEarly && !(await retry.pause(undefined, options.signal)))
      ) {
        return info;
      }
    }
  }

  /** Receives messages once. Most programs use a `Worker` instead. */
  async receive(options: ReceiveOptions = {}): Promise<Delivery[]> {
    const json = {
      max: options.max ?? 10,
      wait_ms: Math.min(wholeMs("waitMs", options.waitMs ?? 0), 60_000),
      ...(options.leaseMs === undefined ? {} : { lease_ms: wholeMs("leaseMs", options.leaseMs) }),
      ...(options.worker === undefined ? {} : { worker: options.worker }),
      ...(options.receiveId === undefined ? {} : { receive_id: options.receiveId }),
      ...(options.severalPerGroup ? { several_per_group: true } : {}),
    };
    const call = {
      method: "POST",
      path: `${this.path}/receive`,
      json,
      isAnswer: areDeliveries,
    } as const;
    const { body } = await this.client.once<{ messages: WireDelivery[] }>(
      call,
      options,
      json.wait_ms,
    );
    return body.messages.map((wire) => new Delivery(wire));
  }

  /** Settles leases once, and returns the answers in order. Most programs use a `Worker` instead. */
  async settle(items: WireSettle[], options: CallOptions = {}): Promise<(Settled | HapaxError)[]> {
    const call = {
      method: "POST",
      path: `${this.path}/settle`,
      json: { items },
      isAnswer: hasAnswers,
    } as const;
    const { body } = await this.client.once<{ answers: WireSettled[] }>(call, options);
    return items.map((_, index) => settledOf(body.answers[index]));
  }

  /** The path of a key, or of a verb under it. @internal */
  keyPath(
    key: string,
    verb: string,
    group: string | undefined,
    query: Record<string, string> = {},
  ): string {
    checkKey(key);
    if (key === "." || key === "..") {
      // A URL takes them for steps in its path, also where they are encoded.
      throw new InvalidError(`the key "${key}" cannot be named in a URL`);
    }
    const parameters = new URLSearchParams(query);
    if (group !== undefined) {
      parameters.set("group", group);
    }
    const text = parameters.size === 0 ? "" : `?${parameters}`;
    return `${this.path}/keys/${encodeURIComponent(key)}${verb}${text}`;
  }

  async #sendAll(messages: Message[], options: CallOptions): Promise<(Answer | HapaxError)[]> {
    const retry = new Retry(this.client.timeoutOf(options));
    const answers: (Answer | HapaxError)[] = [];
    const places: Place[] = [];
    for (const [index, message] of messages.entries()) {
      try {
        const key = message.key ?? newKey();
        places.push({ index, key, written: written(this.path, key, message) });
      } catch (error) {
        if (!(error instanceof HapaxError)) {
          throw error;
        }
        answers[index] = error;
      }
    }
    await this.#answer(places, answers, retry, options.signal);
    for (const { index, key } of places) {
      if (messages[index]?.key === undefined) {
        answers[index] = withKey(answers[index] as Answer | HapaxError, key);
      }
    }
    return answers;
  }

  /** Sends in batches, and repeats the messages with a retryable refusal while there is time. */
  async #answer(
    places: Place[],
    answers: (Answer | HapaxError)[],
    retry: Retry,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    let open = places;
    for (;;) {
      for (const batch of packed(open)) {
        await this.#sendBatch(batch, answers, retry, signal);
      }
      open = open.filter(({ index }) => isRetried(answers[index]));
      const asked = open.map(({ index }) => (answers[index] as HapaxError).retryAfterMs ?? 0);
      const longest = asked.reduce((most, ms) => Math.max(most, ms), 0);
      if (open.length === 0 || !(await retry.pause(longest, signal))) {
        return;
      }
    }
  }

  /** Sends one batch; the error of the whole request is the answer to each of its messages. */
  async #sendBatch(
    batch: Place[],
    answers: (Answer | HapaxError)[],
    retry: Retry,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    try {
      const wires = await this.#wires(batch, retry, signal);
      batch.forEach(({ index, key }, place) => {
        answers[index] = answerOf(wires[place], this.name, key);
      });
    } catch (error) {
      if (!(error instanceof HapaxError)) {
        throw error;
      }
      if (error instanceof TooLargeError && batch.length > 1) {
        // A proxy may take less than the broker does.
        const half = Math.ceil(batch.length / 2);
        await this.#sendBatch(batch.slice(0, half), answers, retry, signal);
        await this.#sendBatch(batch.slice(half), answers, retry, signal);
        return;
      }
      for (const { index } of batch) {
        answers[index] = error;
      }
    }
  }

  /** One request, and the answers in it. */
  async #wires(
    batch: Place[],
    retry: Retry,
    signal: AbortSignal | undefined,
  ): Promise<WireAnswer[]> {
    const texts: string[] = [];
    for (const { written } of batch) {
      if ("raw" in written) {
        const call = { ...written.raw, isAnswer };
        return [(await this.client.tried<WireAnswer>(call, retry, signal)).body];
      }
      texts.push(written.text);
    }
    const call = {
      method: "POST" as const,
      path: `${this.path}/batch`,
      text: `{"messages":[${texts.join(",")}]}`,
      isAnswer: hasAnswers,
    };
    return (await this.client.tried<{ answers: WireAnswer[] }>(call, retry, signal)).body.answers;
  }

  async #wait(answer: Answer, key: string, until: number, options: SendOptions): Promise<Answer> {
    if (answer.hasEnded || now() >= until) {
      return answer;
    }
    const { group, signal } = options;
    const waitMs = Math.max(0, until - now());
    const info = await this.key(key, { group, waitMs, timeoutMs: options.timeoutMs, signal });
    const outcome = outcomeOf(info.state);
    const kind = outcome === "in_flight" ? answer.answer : outcome;
    return new Answer({ ...info.wire, answer: kind }, this.name, key);
  }
}

function isRetried(answer: Answer | HapaxError | undefined): boolean {
  return answer instanceof HapaxError && answer.retryable;
}

/** Adds the generated key to an error that leaves open whether the message was accepted. */
function withKey<T>(answer: T, key: string): T {
  return answer instanceof HapaxError && answer.retryable && answer.key === undefined
    ? answer.withKey(key)
    : answer;
}

function noAnswer(): HapaxError {
  return new UnavailableError("the broker left a message without an answer");
}

const hasAnswers = hasList("answers");
const hasMessages = hasList("messages");
const isAnswer = hasTexts("answer");
const hasNames = hasTexts("key", "id");

function isKey(body: unknown): boolean {
  return hasNames(body) && isState((body as WireKey).state);
}

function areDeliveries(body: unknown): boolean {
  return hasMessages(body) && (body as { messages: WireDelivery[] }).messages.every(isDelivery);
}

/** In one expression, since it is evaluated for every message that a worker receives. */
function isDelivery({ lease, fence, key, lease_ms }: WireDelivery): boolean {
  return (
    typeof lease === "string" &&
    typeof fence === "string" &&
    typeof key === "string" &&
    lease_ms > 0
  );
}
