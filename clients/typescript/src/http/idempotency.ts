/**
 * Idempotency keys for HTTP services: a layer on claims of Hapax, with the rules of the Rust layer
 * and of `hapax proxy`.
 *
 * ```text
 *   claim ── fresh ──▶ begin ──▶ handler ──▶ keep ────▶ complete ──▶ the handler's response
 *     │                  │           │        release ─▶ release ──▶ the handler's response
 *     │                  │           └ throws ──────────▶ park
 *     │                  └ lost ──▶ 409      away ──▶ release, 503
 *     ├ done ────────────▶ the stored response, marked
 *     ├ in flight ───────▶ 409        conflict ─▶ 422        parked ─▶ 409
 *     └ broker away ─────▶ 503, or the handler without a claim
 * ```
 *
 * It keeps no state: any number of processes share the keys, and one that dies loses none.
 */

import { type Claim, Held } from "../claim.js";
import { HapaxError, InFlightError, LeaseLostError } from "../errors.js";
import { checkKey, dateMs } from "../keys.js";
import type { Queue } from "../queue.js";
import { Retry, within } from "../retry.js";
import { errorText } from "../settle.js";
import { type Chunks, gather, readWhole, Unread, Uploads } from "./body.js";
import { bodyKey, checked, keyOf, Refused } from "./key.js";
import { Operation } from "./operation.js";
import {
  type IdempotencyOptions,
  type Outcome,
  type Remember,
  type Rules,
  rulesOf,
} from "./options.js";
import * as problems from "./problem.js";
import { replay, whole } from "./replay.js";
import { type Head, looseSegments, type Route, segments } from "./route.js";
import { claimKey, fingerprint, namedByConnection, preferredWait } from "./scope.js";
import { Settling } from "./settling.js";
import { type Stored, storedHeaders } from "./stored.js";

const DATED_AHEAD_MS = 24 * 60 * 60 * 1_000;
const TENANT_BYTES_MAX = 1_024;
const NAMED_PATH_MAX = 100;

/** A request as the adapters give it. */
export interface Incoming {
  head: Head;
  headers: Headers;
  /** The body, to be read once. */
  chunks: () => Chunks;
  /** `Content-Length`, or 0. */
  declaredBytes: number;
}

/** What a handler did: its response, and what it threw where the framework made a response of it. */
export interface Handled {
  response: Response;
  thrown?: unknown;
}

/** Calls the handler; `body` is `undefined` where the request was not read. */
export type Call = (
  operation: Operation | undefined,
  body: Uint8Array | undefined,
) => Promise<Handled>;

/** A protected request. */
interface Asked {
  key: string;
  claimKey: string;
  fingerprint: string;
  tenant: string;
  /** Method and path, for the operator who has to resolve it. */
  request: string;
  waitMs: number | undefined;
}

type Taken = { held: Held } | { outcome: Outcome; response: Response } | { unprotected: true };

export class Engine {
  readonly rules: Rules;
  readonly #uploads = new Uploads();
  #running = 0;
  #operations = 0;
  #idle: (() => void)[] = [];

  constructor(queue: Queue, options: IdempotencyOptions) {
    this.rules = rulesOf(queue, options);
  }

  get running(): number {
    return this.#running;
  }

  /** Waits until nothing is in progress, and returns whether that is so. */
  async drained(timeoutMs: number): Promise<boolean> {
    if (this.#running > 0) {
      const idle = new Promise<void>((resolve) => this.#idle.push(resolve));
      await within(idle, timeoutMs, undefined);
    }
    return this.#running === 0;
  }

  /** Answers a request, by its handler or without. */
  async answer(incoming: Incoming, call: Call): Promise<Response> {
    const { head } = incoming;
    const { rules } = this;
    const named = namedByConnection(head, rules.deciding);
    if (named !== undefined) {
      return this.#refuse(
        problems.invalid(
          `the Connection header names ${named}, so services behind a proxy would not see that ` +
            "header; nothing was done",
        ),
      );
    }
    const path = segments(head.path);
    const route = rules.routes.find((one) => one.matches(head.method, path));
    if (route === undefined) {
      const lookalike = this.#lookalike(head);
      return lookalike === undefined ? this.#bypass(call, undefined) : this.#refuse(lookalike);
    }
    try {
      const key = keyOf(route, head);
      if (key === "absent") {
        return await this.#bypass(call, undefined);
      }
      return await this.#protect(route, key, incoming, call);
    } catch (error) {
      if (error instanceof Refused) {
        return this.#refuse(error.problem);
      }
      throw error;
    }
  }

  /** The refusal of a request that only some services would read as one for a protected route. */
  #lookalike(head: Head): problems.Problem | undefined {
    const path = looseSegments(head.path);
    const route = this.rules.routes.find((one) => one.mayMatch(head.method, path));
    if (route === undefined) {
      return undefined;
    }
    try {
      if (keyOf(route, head) === "absent") {
        return undefined; // It would not be protected in the usual spelling either.
      }
    } catch (error) {
      if (!(error instanceof Refused)) {
        throw error;
      }
    }
    return problems.invalid(
      "the method or path of this request is ambiguous (case, encoded slashes, ';'): some services " +
        `would read it as ${route.pattern}, which requires a key. Write it in that form`,
    );
  }

  async #bypass(call: Call, body: Uint8Array | undefined): Promise<Response> {
    this.#tell("bypassed");
    const handled = await call(undefined, body);
    return handled.response;
  }

  async #protect(
    route: Route,
    found: { key: string } | "in_body",
    incoming: Incoming,
    call: Call,
  ): Promise<Response> {
    const { rules } = this;
    const tenant = this.#tenant(incoming);
    let body: Uint8Array;
    try {
      body = await readWhole(rules, this.#uploads, incoming.chunks(), incoming.declaredBytes);
    } catch (error) {
      if (!(error instanceof Unread)) {
        throw error;
      }
      return error.problem === undefined
        ? this.#overloaded("too many requests with keys are being received")
        : this.#refuse(error.problem);
    }
    const key = found === "in_body" ? bodyKey(route, incoming.head, body) : found.key;
    if (key === undefined) {
      return this.#bypass(call, body);
    }
    const asked = this.#ask(route, key, tenant, incoming.head, body);
    // Only now, so that slow uploads do not take the place of complete requests.
    if (this.#operations >= rules.operationsMax) {
      return this.#overloaded("too many requests with keys are in progress");
    }
    this.#operations += 1;
    return this.#track(this.#run(asked, (operation) => call(operation, body))).finally(() => {
      this.#operations -= 1;
    });
  }

  #tenant({ head, headers }: Incoming): string {
    const { tenant, tenantHeader } = this.rules;
    let found: string | undefined;
    if (tenantHeader !== undefined) {
      const [value = "", ...others] = head.values(tenantHeader);
      found = others.length === 0 && /^[\t\x20-\x7e]+$/.test(value) ? value : undefined;
    } else if (tenant !== undefined) {
      found = tenant({ headers, method: head.method, path: head.path });
    } else {
      return "";
    }
    // An empty name identifies nobody: those who have it would share their answers.
    const bytes = Buffer.byteLength(found ?? "");
    if (found === undefined || bytes < 1 || bytes > TENANT_BYTES_MAX) {
      throw new Refused(problems.noTenant());
    }
    return found;
  }

  #ask(route: Route, key: string, tenant: string, head: Head, body: Uint8Array): Asked {
    const { rules } = this;
    checked(() => checkKey(key));
    const date = dateMs(key, Date.now());
    if (date !== undefined && date > Date.now() + DATED_AHEAD_MS) {
      const detail =
        "the date of the key is more than a day in the future: check the clock of the client";
      throw new Refused(problems.malformedKey(detail));
    }
    const wait = preferredWait(head);
    return {
      key,
      claimKey: claimKey(rules.namespace, tenant, head.method, route.path, key),
      fingerprint: fingerprint(head, rules.compared, body),
      tenant,
      request: named(head),
      waitMs: wait === undefined ? undefined : Math.min(wait * 1_000, rules.waitMsMax),
    };
  }

  async #run(asked: Asked, call: (operation?: Operation) => Promise<Handled>): Promise<Response> {
    let taken = await this.#take(asked);
    if ("held" in taken) {
      taken = await this.#begin(taken.held);
    }
    if ("held" in taken) {
      return this.#work(asked, taken.held, call);
    }
    if ("unprotected" in taken) {
      const { response } = await call();
      return this.#told("unprotected", response);
    }
    if (asked.waitMs !== undefined) {
      taken.response.headers.set("preference-applied", `wait=${Math.floor(asked.waitMs / 1_000)}`);
    }
    return this.#told(taken.outcome, taken.response);
  }

  /** Claims the key, or returns the response instead. Waits for the broker at most for its timeout. */
  async #take(asked: Asked): Promise<Taken> {
    const { rules } = this;
    const taking = this.#claim(asked, asked.waitMs);
    let claimed: Claim | "late";
    try {
      claimed = await within(taking, rules.brokerTimeoutMs + (asked.waitMs ?? 0), "late" as const);
    } catch (error) {
      return this.#refused(error);
    }
    if (claimed === "late") {
      rules.observe({ type: "broker_failed", code: "unavailable" });
      // The claim may have succeeded at the broker: then it is released when the answer arrives.
      const release = async (): Promise<void> => {
        const claim = await taking;
        if (claim instanceof Held) {
          await claim.release();
        }
      };
      this.#track(release()).catch(() => undefined);
      return this.#unavailable();
    }
    if (claimed instanceof Held) {
      return { held: claimed };
    }
    switch (claimed.answer) {
      case "done":
        return { outcome: "replayed", response: replay(claimed.result) };
      case "accepted":
      case "in_flight":
        return this.#inProgress();
      case "dead":
      case "parked": {
        const response = problems.inDoubt(asked.claimKey).response();
        return { outcome: "in_doubt", response };
      }
    }
  }

  #inProgress(): Taken {
    const response = problems.inProgress(this.rules.retryAfterMs).response();
    return { outcome: "in_progress", response };
  }

  /**
   * Reports `begin`: from here on a lost lease leaves the operation in doubt, if the queue parks. If
   * the broker does not answer in time, nothing is done and the key is released.
   */
  async #begin(held: Held): Promise<Taken> {
    const { brokerTimeoutMs, observe } = this.rules;
    try {
      await held.begin({ timeoutMs: brokerTimeoutMs });
      return { held };
    } catch (error) {
      if (error instanceof LeaseLostError) {
        return this.#inProgress();
      }
      observe({ type: "broker_failed", code: codeOf(error) });
    }
    // If this fails too, retries get `in_flight` until the lease ends.
    const retry = new Retry(600_000, { firstMs: 200, longestMs: 200 });
    const released = retry.run(() => held.release()).finally(() => held.abandon());
    this.#track(released).catch(() => undefined);
    return this.#unavailable();
  }

  #claim(asked: Asked, waitMs: number | undefined): Promise<Claim> {
    const { rules } = this;
    const date = dateMs(asked.key, Date.now());
    return rules.queue.claim(asked.claimKey, {
      fingerprint: asked.fingerprint,
      // If this process dies, this tells an operator what is in doubt.
      headers: { request: asked.request },
      leaseMs: rules.leaseMs,
      waitMs,
      worker: rules.worker,
      // The broker cannot read the date of a key from its digest.
      issuedAt: date === undefined ? undefined : new Date(date),
    });
  }

  /** The response for a refusal of the broker. */
  #refused(error: unknown): Taken {
    if (!(error instanceof HapaxError)) {
      throw error;
    }
    const refusal = (outcome: Outcome, problem: problems.Problem): Taken => ({
      outcome,
      response: problem.response(),
    });
    switch (error.code) {
      case "conflict":
        return refusal("conflict", problems.conflict());
      case "too_old":
        return refusal("refused", problems.tooOld());
      case "undated_key":
        return refusal("refused", problems.undatedKey());
      default:
        this.rules.observe({ type: "broker_failed", code: error.code });
        if (error.retryable && !(error instanceof InFlightError)) {
          return this.#unavailable();
        }
        return refusal(
          "misconfigured",
          problems.internal("the service cannot store its response; nothing was done"),
        );
    }
  }

  #unavailable(): Taken {
    if (this.rules.onUnavailable === "open") {
      return { unprotected: true };
    }
    const detail =
      "nothing was done, because the response could not be stored; retry with the same key";
    const response = problems.unavailable(detail, this.rules.retryAfterMs).response();
    return { outcome: "unavailable", response };
  }

  /** Calls the handler under a claim, and settles it. */
  async #work(
    asked: Asked,
    held: Held,
    call: (operation: Operation) => Promise<Handled>,
  ): Promise<Response> {
    const { rules } = this;
    const operation = new Operation(asked.key, asked.claimKey, asked.tenant, held);
    const claim = (): Promise<Claim> => this.#claim(asked, undefined);
    const settling = new Settling(rules, held, claim, (work) => this.#track(work));
    let handled: Handled;
    let remember: Remember;
    try {
      handled = await call(operation);
      remember = this.#chosen(operation, handled);
    } catch (error) {
      await settling.park(`${asked.request}: its handler threw: ${errorText(error)}`);
      this.#tell("fresh");
      throw error;
    }
    const { response, thrown } = handled;
    switch (remember) {
      case "release":
        await settling.release();
        return this.#told("fresh", response);
      case "in_doubt": {
        const why =
          thrown === undefined
            ? `its handler answered ${response.status} without knowing the outcome`
            : `its handler threw: ${errorText(thrown)}`;
        await settling.park(`${asked.request}: ${why}`);
        return this.#told("fresh", response);
      }
      case "keep":
        return this.#keep(asked, settling, response);
    }
  }

  /** What becomes of the key: by the handler, by what it threw, or by the policy. */
  #chosen(operation: Operation, { response, thrown }: Handled): Remember {
    if (typeof response?.status !== "number") {
      throw new TypeError("the handler returned no response");
    }
    const unless = (): Remember =>
      thrown === undefined ? this.rules.policy(response.status, response.headers) : "in_doubt";
    const chosen = operation.chosen ?? unless();
    if (!["keep", "release", "in_doubt"].includes(chosen)) {
      throw new TypeError(
        `the policy returned "${chosen}", which is not keep, release or in_doubt`,
      );
    }
    return chosen;
  }

  /** Stores the response, and then returns it. */
  async #keep(asked: Asked, settling: Settling, response: Response): Promise<Response> {
    const { rules } = this;
    const body = await gather(response, rules.responseBytesMax);
    if ("broken" in body) {
      const why = `its response was interrupted: ${errorText(body.broken)}`;
      await settling.park(`${asked.request}: ${why}`);
      return this.#told("in_doubt", problems.brokenResponse(asked.claimKey).response());
    }
    const stored: Stored = {
      status: response.status,
      headers: storedHeaders(response.headers, rules.kept),
      body: "whole" in body ? body.whole : undefined,
    };
    const ended = await settling.complete(stored);
    switch (ended.how) {
      case "stored":
        return this.#told("fresh", whole(response, body));
      case "replaced":
        return this.#told("lease_lost", replay(ended.result));
      case "superseded":
        return this.#told("lease_lost", problems.leaseLost(rules.retryAfterMs).response());
      case "unknown": {
        if (rules.onUnavailable === "open") {
          return this.#told("unprotected", whole(response, body));
        }
        const detail =
          "the request was carried out, but its response is not stored yet: retry with the same " +
          "key to get it";
        const problem = problems.unavailable(detail, rules.retryAfterMs);
        return this.#told("unavailable", problem.response());
      }
      case "refused": {
        const detail = "the request was carried out, but its response cannot be stored";
        return this.#told("misconfigured", problems.internal(detail).response());
      }
    }
  }

  #overloaded(why: string): Response {
    const problem = problems.unavailable(`${why}; nothing was done`, this.rules.retryAfterMs);
    return this.#told("overloaded", problem.response());
  }

  /** Answers without a handler and without a claim. */
  #refuse(problem: problems.Problem): Response {
    const { code } = problem;
    const isOfKey = code === "missing_key" || code === "malformed_key";
    return this.#told(isOfKey ? code : "refused", problem.response());
  }

  #told(outcome: Outcome, response: Response): Response {
    this.#tell(outcome);
    return response;
  }

  #tell(outcome: Outcome): void {
    this.rules.observe({ type: "answered", outcome });
  }

  /** Counts something as long as it is in progress. */
  async #track<T>(work: Promise<T>): Promise<T> {
    this.#running += 1;
    try {
      return await work;
    } finally {
      this.#running -= 1;
      if (this.#running === 0) {
        for (const idle of this.#idle.splice(0)) {
          idle();
        }
      }
    }
  }
}

/** Method and path, for operators: the claim's key is only a hash. In characters of a header. */
function named(head: Head): string {
  const path = head.path.replace(/[^\x21-\x7e]/g, "?");
  const cut = path.length > NAMED_PATH_MAX ? `${path.slice(0, NAMED_PATH_MAX)}...` : path;
  return `${head.method} ${cut}`;
}

function codeOf(error: unknown): string {
  return error instanceof HapaxError ? error.code : "internal";
}
