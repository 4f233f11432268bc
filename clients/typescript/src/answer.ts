/** The answer to a send: what the broker knows about the key. */

import { Content, type WireContent } from "./content.js";
import { dateOf, errorOf, type HapaxError, type Problem, strangeAnswer } from "./errors.js";

/** The state of a message. */
export type State = "ready" | "delayed" | "leased" | "parked" | "dead" | "done" | "discarded";

/** The kind of an answer: `accepted` is a new key, anything else a known one. */
export type Outcome = "accepted" | "in_flight" | "done" | "dead" | "parked";

/** An answer in JSON. */
export interface WireAnswer extends Omit<Problem, "state"> {
  answer: Outcome | "error" | "fresh";
  queue?: string;
  key?: string | null;
  state?: State;
  result?: WireContent | null;
  result_omitted?: boolean;
  error?: string | null;
  finished_at?: string | null;
  remembered_until?: string | null;
}

/**
 * The answer to a send. The first send of a key gets `accepted`, every later one the present state
 * of the message. Both are a success: the broker has the message.
 */
export class Answer {
  readonly answer: Outcome;
  readonly queue: string;
  readonly key: string;
  /** The id of the first message under the key. */
  readonly id: string;
  readonly state: State;
  readonly attempts: number;
  readonly acceptedAt: Date;
  /** The time at which the lease or the delay ends. */
  readonly deadline: Date | undefined;
  /** What the worker stored, of a message that is done. */
  readonly result: Content | undefined;
  /** Whether the result was left out of a large batch: get it by its key. */
  readonly resultOmitted: boolean;
  /** The last error, of a message that is dead. */
  readonly error: string | undefined;
  readonly finishedAt: Date | undefined;
  /** `undefined` while it has not ended, and if the key is remembered for ever. */
  readonly rememberedUntil: Date | undefined;

  constructor(wire: WireAnswer, queue: string, key: string) {
    this.answer = wire.answer as Outcome;
    this.queue = wire.queue ?? queue;
    this.key = wire.key ?? key;
    this.id = wire.id ?? "";
    this.state = wire.state ?? "ready";
    this.attempts = wire.attempts ?? 0;
    this.acceptedAt = dateOf(wire.accepted_at) ?? new Date(0);
    this.deadline = dateOf(wire.deadline);
    this.result = wire.result == null ? undefined : Content.read(wire.result);
    this.resultOmitted = wire.result_omitted ?? false;
    this.error = wire.error ?? undefined;
    this.finishedAt = dateOf(wire.finished_at);
    this.rememberedUntil = dateOf(wire.remembered_until);
  }

  /** Whether this send was the first of its key. */
  get isNew(): boolean {
    return this.answer === "accepted";
  }

  /** Whether waiting for the end is over: done, dead or parked. */
  get hasEnded(): boolean {
    return this.answer !== "accepted" && this.answer !== "in_flight";
  }

  /** Whether it was discarded or purged: it is dead, and there is no message left to redrive. */
  get isDiscarded(): boolean {
    return this.state === "discarded";
  }
}

const OUTCOMES: string[] = ["accepted", "in_flight", "done", "dead", "parked"] satisfies Outcome[];

/** The answer, or the refusal of one message as an error. */
export function answerOf(
  wire: WireAnswer | undefined,
  queue: string,
  key: string,
): Answer | HapaxError {
  if (wire?.answer === "error") {
    return errorOf(wire as Problem);
  }
  if (wire === undefined || !OUTCOMES.includes(wire.answer)) {
    return strangeAnswer("a message has no answer, or one that is unknown");
  }
  return new Answer(wire, queue, key);
}

const STATES = ["ready", "delayed", "leased", "parked", "dead", "done", "discarded"];

/** Whether it is a state that this release knows. */
export function isState(state: unknown): state is State {
  return STATES.includes(state as string);
}

/** The kind of answer that a message in this state gets. */
export function outcomeOf(state: State): Outcome {
  switch (state) {
    case "done":
    case "parked":
      return state;
    case "dead":
    case "discarded":
      return "dead";
    case "ready":
    case "delayed":
    case "leased":
      return "in_flight";
  }
}
